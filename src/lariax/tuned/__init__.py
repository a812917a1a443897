"""Our own rules as pure state transitions, generic over the array library."""

"""The table of guards: what it takes out is there, and comes back."""

import importlib

import pytest
from benchmarks.suite.guards import GUARDS, replaced


def value_of(key):
    module, name = key.split(".")
    return getattr(importlib.import_module(f"lariax.tuned.{module}"), name)


@pytest.mark.parametrize("name", [name for name in GUARDS if GUARDS[name]])
def test_a_guard_is_taken_out_and_comes_back(name, monkeypatch):
    monkeypatch.setattr("jax.clear_caches", lambda: None)  # other tests would compile anew
    before = {key: value_of(key) for key in GUARDS[name]}
    with replaced(GUARDS[name]):
        for key, value in before.items():
            assert value_of(key) == GUARDS[name][key] != value
    assert {key: value_of(key) for key in GUARDS[name]} == before

"""Compiled programs, kept on disk from one process to the next."""

import hashlib
import os
import platform
from pathlib import Path

import jax

MOST_BYTES = 2**30  # the programs used least recently go first
SHORTEST = 0.1  # seconds of compiling from which a program is worth keeping


def keep_programs(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs in a folder, by default in the user's cache, and use those that are there.

    This is JAX's persistent compilation cache, bounded to a gigabyte. A folder that the user has set by
    `jax_compilation_cache_dir` or `JAX_COMPILATION_CACHE_DIR` is left as it is. Programs are executed, so the folder is
    made for the user alone; a folder that belongs to somebody else is not used. Returns the folder in use, or None.

    >>> import tempfile
    >>> from lariax.compilation import keep_programs
    >>> keep_programs(tempfile.gettempdir()) is None  # doctest: +SKIP
    False
    """
    chosen = jax.config.values["jax_compilation_cache_dir"]
    if chosen:
        return Path(chosen)
    place = Path(folder) if folder is not None else _user_cache() / "lariax" / f"programs-{_processor()}"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None  # without a place to keep them, programs are compiled as ever
    if hasattr(os, "getuid") and place.stat().st_uid != os.getuid():
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_compilation_cache_max_size", MOST_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", SHORTEST)
    return place


def _user_cache() -> Path:
    if os.name == "nt" and "LOCALAPPDATA" in os.environ:
        return Path(os.environ["LOCALAPPDATA"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """A name for the kind of processor: a program compiled for another one need not run here."""
    about, facts = Path("/proc/cpuinfo"), [platform.machine(), platform.processor()]
    if about.exists():
        facts += sorted({line for line in about.read_text().splitlines() if line.startswith(("flags", "Features"))})
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]

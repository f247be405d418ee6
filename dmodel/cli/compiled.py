"""Compiled code on disk: what one command compiles, the next one loads."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled code is kept between runs: `$DMODEL_CACHE`, else `dmodel` in the user's cache
    folder.

    One place for each kind of processor: compiled code uses what its processor can do, and machines
    may share a home.
    """
    base = (
        os.environ.get("DMODEL_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "dmodel"
    )
    return Path(base) / "jax" / _processor()


def _processor() -> str:
    """Eight digits that stand for what the processor can do."""
    import hashlib
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        can = sorted(
            {line for line in lines if line.startswith(("model name", "flags", "Features"))}
        )
    except OSError:
        can = []
    return hashlib.sha256(
        "\n".join([platform.machine(), platform.processor(), *can]).encode()
    ).hexdigest()[:8]


def ready() -> None:
    """Make JAX ready for the numbers of a command: float64, and compiled code on disk.

    What needs no numbers, such as a help or a mistake in an option, is answered before, and without
    JAX.
    """
    from dmodel.types import enable_float64

    enable_float64()
    keep_compiled_code()


def keep_compiled_code() -> None:
    """Let JAX keep compiled code on disk, so that it compiles once; without a writable folder it
    compiles every time. Where JAX has that folder already nothing changes."""
    import jax

    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return
    set_already = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if str(folder) != set_already and os.access(folder, os.W_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

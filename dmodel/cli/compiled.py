"""Compiled code on disk: what one command compiles, the next one loads."""

from __future__ import annotations

from pathlib import Path

from dmodel import entries


def cache_folder() -> Path:
    """Where compiled code is kept between runs, one place for each kind of processor."""
    return entries.base() / "jax" / entries.processor()


def keep_compiled_code() -> None:
    """Let JAX keep compiled code on disk, so that it compiles once; without a folder of the user's
    own it compiles every time."""
    import jax

    folder = entries.folder("jax")
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

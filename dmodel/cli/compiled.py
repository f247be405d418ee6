"""Compiled code on disk: what one command compiles, the next one loads."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from dmodel import entries

MOST_FILES, MOST_BYTES = 4096, 2**28
"""What the folder of JAX's compiled code holds at most once a command has ended."""


def cache_folder() -> Path:
    """Where compiled code is kept between runs, one place for each kind of processor."""
    return entries.base() / "jax" / entries.processor()


def ready() -> None:
    """Make JAX ready for the numbers of a command: float64, and compiled code on disk.

    What needs no numbers, such as a help or a mistake in an option, is answered before, and without
    JAX.
    """
    from dmodel.cli.output import say
    from dmodel.types import enable_float64

    enable_float64()
    entries.speak_by(lambda words: say(f"dmodel: {words}"))
    keep_compiled_code()


THREADS = "OPENBLAS_NUM_THREADS"
"""How many threads linear algebra of numpy and scipy uses; each looks when it is loaded."""


def use_one_thread_for_matrices() -> None:
    """Let linear algebra of numpy and scipy run on one thread, unless the user says how many: on
    matrices as small as covariances of coefficients, threads wait longer than they work. Without
    effect on what is loaded already."""
    os.environ.setdefault(THREADS, "1")


def keep_compiled_code() -> None:
    """Let JAX keep compiled code on disk, so that it compiles once; without a folder of the user's
    own it compiles every time. Where JAX has that folder already nothing changes.

    JAX drops nothing by itself (to do so it asks for one package more); so at the end of the
    command the code that was used longest ago goes.
    """
    import jax

    folder = entries.folder("jax")
    set_already = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if folder is not None and str(folder) != set_already:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        atexit.register(tidy, folder)


def tidy(folder: Path) -> None:
    """Drop what was used longest ago from a folder of JAX's compiled code."""
    entries.bound(folder, "*-cache", MOST_FILES, MOST_BYTES)

"""What every test runs under: float64, no silent promotion of ranks or dtypes, warnings as errors (pyproject.toml); long files first."""

import os
from pathlib import Path

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# compiled code outlives a run; one folder per worker, because a half-written entry read by another one is a warning
_CACHE = Path(__file__).parents[1] / ".cache" / "jax-tests" / os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

LONGEST = (
    "fit", "terms", "cli", "design", "codesign", "step", "sensitivity", "uncertainty", "theory_frontier", "collect_compare",
    "collect_workload", "theory_search", "doctests",
)  # fmt: skip
"""Beginnings of the names of files that take long, longest first: started first, so that no worker is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """Workers take files in the order below, not those with the most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return next((i for i, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))

    items.sort(key=rank)

"""What every test runs under: float64, no silent promotion of ranks or dtypes, warnings as errors (pyproject.toml)."""

import os
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# compiled code outlives a run; one folder per worker, because a half-written entry read by another one is a warning
_CACHE = Path(__file__).parents[1] / ".cache" / "jax-tests" / os.environ.get("PYTEST_XDIST_WORKER", "main")
jax.config.update("jax_compilation_cache_dir", str(_CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

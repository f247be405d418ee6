"""What every test runs under: float64, no silent promotion of ranks or dtypes, warnings as errors
(pyproject.toml); long files first.

Most of the time of the quick tests is that of compiling, so `-m "not slow"` compiles quickly, in
the processes that tests start too; all tests together compile as users do.
"""

import gc
import os
from importlib import import_module
from pathlib import Path

import jax
import pytest

from dmodel.cli.compiled import cache_folder

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# programs that were traced stay, and looking through them for garbage again and again takes longer
# than some tests
gc.set_threshold(50_000, 20, 50)

# compiled code outlives a run; workers and the processes that tests start share it
os.environ["DMODEL_CACHE"] = str(Path(__file__).parents[1] / ".cache" / "tests")
jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache_folder())
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
HALF_WRITTEN = "ignore:Error reading persistent compilation cache entry"
"""An entry that another worker is writing cannot be read; what it holds is compiled again."""

QUICK = ["--xla_backend_optimization_level=0"]
if jax.__version_info__ < (0, 12):
    # XLA ends the process at a flag that it does not know
    QUICK += [
        "--xla_cpu_use_fusion_emitters=false",
        # two workers have two processors: parts of a program that compile apart only cost more
        "--xla_cpu_parallel_codegen_split_count=1",
    ]

LONGEST = (
    "experiments",
    "fit",
    "collect_",
    "micro",
    "design",
    "codesign",
    "replay",
    "cli",
    "terms",
    "sensitivity",
    "noticed",
    "theory_",
    "recorded",
    "footprints",
    "uncertainty",
    "step",
    "sweep",
    "doctests",
    "layers",
    "traces_published",
    "profiles_packed",
)
"""Beginnings of the names of files that take long, longest first: started first, so that no worker
is left alone with one at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """Quick tests compile quickly; workers take files in the order above, not those with the most
    tests first."""
    config.addinivalue_line("filterwarnings", HALF_WRITTEN)
    if config.option.markexpr == "not slow":
        flags = os.environ.get("XLA_FLAGS", "").split()
        os.environ["XLA_FLAGS"] = " ".join([*flags, *(flag for flag in QUICK if flag not in flags)])
        # programs that are compiled to run on many plans run on few here
        sweep = import_module("dmodel.sweep")
        sweep.for_many = sweep.quick_to_compile
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return next((i for i, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))

    items.sort(key=rank)


ROOMY, MORE = 4e9, 1e9
"""What a worker may hold before it lets go of compiled programs, and how much more before it does
so again [byte]: those of all files together are 11 GB."""


def resident() -> float:
    """Memory that the process holds [byte]; 0 where the system does not say."""
    told = Path("/proc/self/statm")
    return float(told.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if told.exists() else 0.0


@pytest.fixture(scope="session")
def let_go():
    """What the process held when it last let go of something [byte]. Freed memory stays its own, so
    without this each later file would begin with nothing compiled."""
    return [ROOMY - MORE]


@pytest.fixture(scope="module", autouse=True)
def _room(let_go):
    """Programs of files that are done make room for others'."""
    yield
    if resident() > let_go[0] + MORE:
        jax.clear_caches()
        gc.collect()
        let_go[0] = resident()

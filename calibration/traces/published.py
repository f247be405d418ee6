"""The curated table of published measurements that ships with the package: figures, each row with
its citation and licence.

Sources, by the column `source`: Megatron-LM and Megatron-Turing papers and README, NeMo, NeMo
AutoModel and Megatron-Bridge performance tables, NVIDIA's recipes for DGX Cloud, MosaicML LLM
Foundry, torchtitan, fms-fsdp, KempnerForge, InternEvo, the BigScience chronicles, DLPerf, FlagPerf,
the papers on MegaScale and zero-bubble pipelines, MaxText, JAX-Toolbox, Levanter, Google
gpu-recipes and tpu-recipes, MLPerf Training logs, vTrain (docs/data.md lists them with rows and
licences). Rows that the model cannot use (a hybrid architecture, no batch, no time) stay in the
table and are reported with their reason.

The step times of the MLPerf rows are medians over the samples of public logs, not an official
MLPerf metric, and are not verified by MLCommons. Composed rows (`flag`) are sums of per-layer
measurements by their authors.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from calibration.traces.reader import read, unread
from calibration.traces.table import TraceTable, fingerprint
from dmodel.profiles import family

PUBLISHED = Path(__file__).parent / "data" / "published.csv"


@lru_cache(maxsize=1)
def published() -> TraceTable:
    """The shipped table; read once."""
    return read(PUBLISHED)


@lru_cache(maxsize=1)
def fingerprints() -> frozenset[str]:
    """Of every row of the shipped table, usable or not."""
    return frozenset(map(fingerprint, unread(PUBLISHED)))


@lru_cache(maxsize=8)
def of_families(families: frozenset[str]) -> TraceTable:
    """The rows of the shipped table of some families of stacks."""
    return read(PUBLISHED, wanted=lambda row: family(row.stack) in families)

"""What is asked, as numbers only: the model, the cluster, and the plan that runs the one on the
other. Names live in the catalog."""

from dmodel.records.cluster import Chip, Cluster, Network
from dmodel.records.layout import PLACEMENT, SCHEDULES, Layout
from dmodel.records.model import (
    NONE,
    OF_MODEL,
    Block,
    Model,
    check_counts,
    counts_of,
    ff_width,
    having,
    named_parts,
    sized,
    stacked,
    trimmed,
    value,
)
from dmodel.records.plan import LEAVES, Plan, flat, leaf
from dmodel.records.precision import Precision
from dmodel.records.software import (
    BUCKET_GRADIENTS,
    BUCKET_GRADIENTS_PER_RANK,
    NEEDS,
    Software,
)

__all__ = [
    "BUCKET_GRADIENTS",
    "BUCKET_GRADIENTS_PER_RANK",
    "LEAVES",
    "NEEDS",
    "NONE",
    "OF_MODEL",
    "PLACEMENT",
    "SCHEDULES",
    "Block",
    "Chip",
    "Cluster",
    "Layout",
    "Model",
    "Network",
    "Plan",
    "Precision",
    "Software",
    "check_counts",
    "counts_of",
    "ff_width",
    "flat",
    "having",
    "leaf",
    "named_parts",
    "sized",
    "stacked",
    "trimmed",
    "value",
]

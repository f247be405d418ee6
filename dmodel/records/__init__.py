"""What is asked, as numbers only: the model, the cluster, and the plan that runs the one on the
other. Names live in the catalog."""

from dmodel.records.cluster import Chip, Cluster, Network
from dmodel.records.layout import PLACEMENT, Layout, Mixed
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
from dmodel.records.schedule import (
    FOLDS,
    MIXED,
    RULES,
    SCHEDULES,
    USUAL,
    Rules,
    blended,
    ends_together,
    weight_copies,
)
from dmodel.records.software import (
    BUCKET_GRADIENTS,
    BUCKET_GRADIENTS_PER_RANK,
    NEEDS,
    Software,
)

__all__ = [
    "BUCKET_GRADIENTS",
    "BUCKET_GRADIENTS_PER_RANK",
    "FOLDS",
    "LEAVES",
    "MIXED",
    "NEEDS",
    "NONE",
    "OF_MODEL",
    "PLACEMENT",
    "RULES",
    "SCHEDULES",
    "USUAL",
    "Block",
    "Chip",
    "Cluster",
    "Layout",
    "Mixed",
    "Model",
    "Network",
    "Plan",
    "Precision",
    "Rules",
    "Software",
    "blended",
    "check_counts",
    "counts_of",
    "ends_together",
    "ff_width",
    "flat",
    "having",
    "leaf",
    "named_parts",
    "sized",
    "stacked",
    "trimmed",
    "value",
    "weight_copies",
]

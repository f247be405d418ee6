"""What an answer depends on: elasticities at the plan and at the best plan, interactions, global
indices, regimes, flips of the plan."""

from dmodel.sensitivity.case import Point, make_case
from dmodel.sensitivity.flips import Landscape, landscape
from dmodel.sensitivity.goal import Goal
from dmodel.sensitivity.interactions import Interactions, interactions
from dmodel.sensitivity.local import (
    Elasticities,
    Elasticity,
    LeftOut,
    differences,
    elasticities,
    of_case,
)
from dmodel.sensitivity.outputs import OUTPUTS
from dmodel.sensitivity.regimes import RegimeMap, regime_map
from dmodel.sensitivity.reoptimized import Reoptimized, reoptimized, resolved
from dmodel.sensitivity.searched import Searched, searched
from dmodel.sensitivity.sobol import Global, Range, sobol

__all__ = [
    "OUTPUTS",
    "Point",
    "Elasticities",
    "Elasticity",
    "Global",
    "Goal",
    "Interactions",
    "Landscape",
    "LeftOut",
    "Range",
    "RegimeMap",
    "differences",
    "elasticities",
    "interactions",
    "landscape",
    "make_case",
    "of_case",
    "Reoptimized",
    "Searched",
    "regime_map",
    "reoptimized",
    "resolved",
    "searched",
    "sobol",
]

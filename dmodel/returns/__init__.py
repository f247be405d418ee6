"""Marginal returns: what one more device adds, exactly, by differentiation, at a fixed plan and at
the best plan of every scale."""

from dmodel.returns.best import BestReturns, Jump, best_returns
from dmodel.returns.fixed import (
    Growth,
    HalfReturn,
    Measures,
    Returns,
    growth,
    half_return,
    marginal_returns,
    measures,
    scaled,
)

__all__ = [
    "BestReturns",
    "Growth",
    "HalfReturn",
    "Jump",
    "Measures",
    "Returns",
    "best_returns",
    "growth",
    "half_return",
    "marginal_returns",
    "measures",
    "scaled",
]

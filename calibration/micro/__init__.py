"""Micro-benchmarks: single matrix products, attention cores and collectives; their tables, fits,
and priors for the step model."""

from calibration.micro.priors import MicroPrior, priors
from calibration.micro.reader import MicroTable, published, read
from calibration.micro.schema import KINDS

__all__ = ["KINDS", "MicroPrior", "MicroTable", "priors", "published", "read"]

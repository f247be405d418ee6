"""How sure a fit is, and how far its predictions may be off: Laplace, rows left out, NUTS,
bootstrap, what the data do not tell apart."""

from calibration.uncertainty.laplace import Laplace, laplace, narrowing, offset_errors

__all__ = ["Laplace", "laplace", "narrowing", "offset_errors"]

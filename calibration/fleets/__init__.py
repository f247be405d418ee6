"""Tables of more rows than configurations: read in blocks of bounded memory, with the repeats of a
configuration as one row and the statistics of its measurements."""

from calibration.fleets.fleet import Fleet, read
from calibration.fleets.sources import MANY, is_large

__all__ = ["MANY", "Fleet", "is_large", "read"]

"""Measurements that others' programs wrote: logs of training runs and of collectives, profiles;
turned into tables of this project.

One file per format; each yields rows with what the file tells, blanks for what it does not, and
names every place that it could not read.
"""

from calibration.importers.formats import FORMATS, detect, parse
from calibration.importers.found import Result, Trouble
from calibration.importers.source import Source
from calibration.importers.tables import Imported, read, save, settings

__all__ = [
    "FORMATS",
    "Imported",
    "Result",
    "Source",
    "Trouble",
    "detect",
    "parse",
    "read",
    "save",
    "settings",
]

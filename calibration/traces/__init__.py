"""Measured training configurations: the format, its reader and writer, the published table, and the
way to the model's records."""

from calibration.traces.published import published
from calibration.traces.reader import concatenate, read
from calibration.traces.rows import Cases, Labels, to_cases
from calibration.traces.schema import COLUMNS, Column
from calibration.traces.split import split
from calibration.traces.table import Problem, Row, TraceTable, fingerprint
from calibration.traces.writer import write

__all__ = [
    "COLUMNS",
    "Cases",
    "Column",
    "Labels",
    "Problem",
    "Row",
    "TraceTable",
    "concatenate",
    "fingerprint",
    "published",
    "read",
    "split",
    "to_cases",
    "write",
]

"""Work that leaves the process: blocks with names, computed by any executor, kept as Parquet files.

A block is a function of a module and its arguments. Its name is a sum over both, the sources and
the versions, so that what is kept under the name is what the function would give.
"""

from dmodel.parts.block import Arrays, Block, Part, computed
from dmodel.parts.files import Folder
from dmodel.parts.running import State, parts
from dmodel.parts.workers import MOST_WORKERS, Processes, opened

__all__ = [
    "MOST_WORKERS",
    "Arrays",
    "Block",
    "Folder",
    "Part",
    "Processes",
    "State",
    "computed",
    "opened",
    "parts",
]

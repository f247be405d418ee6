"""What a process used, told without numpy: a command of `dmodel` chooses how many threads linear
algebra has before numpy is loaded."""

from __future__ import annotations

import json
import re
import resource
import sys
from pathlib import Path


def processor_time() -> float:
    """Processor time of this process, of all its threads [s]."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_memory() -> float:
    """The most memory that this process ever held [byte].

    Linux says so of the program that runs; what `getrusage` says there is at least what the process
    held that started it.
    """
    told = Path("/proc/self/status")
    found = (
        re.search(r"VmHWM:\s+(\d+) kB", told.read_text(encoding="ascii", errors="replace"))
        if told.exists()
        else None
    )
    if found:
        return 1024.0 * float(found[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1.0 if sys.platform == "darwin" else 1024.0
    )


def child() -> None:
    """Run the command of this process, then tell its processor time and peak on standard error."""
    from dmodel.cli import main

    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    told = {"cpu_s": processor_time(), "peak_gib": peak_memory() / 2**30}
    sys.stderr.write("\n" + json.dumps(told) + "\n")

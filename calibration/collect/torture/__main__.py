"""`python -m calibration.collect.torture --kills 100`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from calibration.collect.torture import torture


def main() -> None:
    """Entry point; prints one JSON document and exits 1 when anything was lost, corrupt or
    repeated."""
    parser = argparse.ArgumentParser(
        description="Kill a collection at random moments; check its store."
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=6000)
    parser.add_argument("--size", type=int, default=30_000, help="of each record [byte]")
    parser.add_argument(
        "--life-s", type=float, default=0.15, help="mean life of a child after its first word [s]"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        verdict = torture(Path(folder), args.kills, args.tasks, args.size, args.seed, args.life_s)
    print(json.dumps({**verdict._asdict(), "passed": verdict.passed}, indent=1))
    sys.exit(not verdict.passed)


if __name__ == "__main__":
    main()

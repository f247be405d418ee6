"""The README's example prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[-+]?\d+)?")


def test_the_example_prints_what_stands_below_it():
    code, shown = re.search(
        r"```python\n(.*?)```\s*```\n(.*?)```",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.DOTALL,
    ).groups()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert NUMBER.sub("#", done.stdout).split() == NUMBER.sub("#", shown).split()
    for found, said in zip(NUMBER.findall(done.stdout), NUMBER.findall(shown), strict=True):
        assert abs(float(found) - float(said)) <= 1e-4 * abs(float(said)), (found, said)

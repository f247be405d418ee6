"""Programs of `dmodel.explore` run by Node, for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed")

RUN = """
const fs = require('fs');
const [text, input, output, entry, inputs, outputs] = process.argv.slice(2);
const bytes = fs.readFileSync(input);
const all = new Float64Array(bytes.buffer, bytes.byteOffset, bytes.length / 8);
const run = (0, eval)(fs.readFileSync(text, 'utf8'))[entry];
const n = inputs > 0 ? all.length / inputs : 1, y = new Float64Array(n * outputs);
for (let i = 0; i < n; i++)
  run(all.subarray(i * inputs, (i + 1) * inputs), y.subarray(i * outputs, (i + 1) * outputs));
fs.writeFileSync(output, Buffer.from(y.buffer));
"""


def outputs(text: str, inputs: np.ndarray, count: int, folder: Path, entry: int = 1) -> np.ndarray:
    """Outputs `[row, count]` of a program for inputs `[row, input]`.

    Args:
      entry: 0 = the short call, 1 = all outputs.
    """
    files = [folder / name for name in ("run.cjs", "program.js", "in.bin", "out.bin")]
    files[0].write_text(RUN)
    files[1].write_text(text)
    np.ascontiguousarray(inputs, np.float64).tofile(files[2])
    run([str(x) for x in (*files, entry, inputs.shape[1], count)])
    return np.fromfile(files[3]).reshape(len(inputs), count)


def run(arguments: list[str], given: object = None) -> str:
    """What a script of Node prints, with a document on its input."""
    done = subprocess.run(
        [str(NODE), *arguments],
        input=None if given is None else json.dumps(given),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout

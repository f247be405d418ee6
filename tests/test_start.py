"""Answers that need no arithmetic load nothing of JAX, and importing the package changes no setting
of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dmodel
from dmodel.cli.app import COMMANDS
from dmodel.cli.compiled import THREADS
from dmodel.lazily import Surface

ROOT = Path(__file__).parents[1]
HEAVY = ("jax", "jaxlib", "flax", "optax", "numpy", "scipy", "matplotlib", "pyarrow")

JOB = "--system H100-DGX --devices 64 --model llama-2-7b --seq-len 4096 --global-batch 128"
KINDS = ("chips", "systems", "models", "stacks", "settings", "profiles")

ANSWERED = [
    "--help",
    "--version",
    "catalog",
    "catalog --json",
    "experiment",
    *(f"{name} --help" for name in COMMANDS),
    *(f"catalog {kind}" for kind in KINDS),
    *(f"catalog {kind} --json" for kind in KINDS if kind != "profiles"),
    "catalog chips h100",
    "catalog systems H100-DGX",
    "catalog models gpt-2",
    "catalog models deepseek-ai/DeepSeek-V3 --json",
    "catalog stacks nemo",
    "catalog settings graphed",
]

REFUSED = {
    "": "Usage: dmodel",
    "conquer": "No such command",
    "predict --typo": "No such option",
    "catalog planets": "unknown kind of catalog entry",
    "catalog chips H101": "nearest: H100-80GB",
    "catalog systems H100-DGY": "nearest: H100-DGX",
    "catalog models llama-3-71b": "nearest: llama-3-70b",
    "catalog stacks nemoo": "nearest: nemo",
    "catalog settings graphd": "nearest: graphed",
    "catalog profiles priors": "did you mean prior?",
    "predict --devices many": "--devices",
    "predict --system H100-DGX": "missing: --devices",
    f"predict {JOB} --tp 0": "--tp: expected an integer from 1",
    f"predict {JOB} --offload 2": "expected a share of the layers between 0 and 1",
    f"predict {JOB} --set graphed=yes": "expected a finite number",
    f"predict {JOB} --set graphd=1": "nearest: graphed",
    f"predict {JOB} --set tp": "expected NAME=VALUE",
    f"predict {JOB} --precision fp7": "precision: expected one of",
    f"predict {JOB} --system H100-DGY": "nearest: H100-DGX",
    f"predict {JOB} --model llama-3-71b": "nearest: llama-3-70b",
    f"predict {JOB} --stack nemoo": "nearest: nemo",
    f"predict {JOB} --stack nemoo --profile prior": "nearest: nemo",
    f"predict {JOB} --set stack=nemoo": "nearest: nemo",
    f"sensitivity {JOB} --stack nemoo": "nearest: nemo",
    f"design {JOB} --stack nemoo": "nearest: nemo",
    f"predict {JOB} --profile priors": "did you mean prior?",
    f"sensitivity {JOB} --model llama-3-71b": "nearest: llama-3-70b",
    f"sensitivity {JOB} --range x=1": "expected INPUT=LOW:HIGH",
    f"design {JOB} --model llama-3-71b": "nearest: llama-3-70b",
    f"design {JOB} --budget-days -1": "--budget-days: expected a positive number",
    "collect --out x --budget-minutes -1": "--budget-minutes: expected a positive number",
    "fit x.csv --out y.json --hold-out 2": "--hold-out: expected a share",
    "theory --sparse": "expected one of --layouts",
    "experiment nothing": "no experiment named",
}
"""Mistakes, and what is said of each."""

ASK = f"""
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from dmodel.cli import main

found = {{}}
for words in json.loads(sys.stdin.read()):
    sys.argv[1:], said = words.split(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    heavy = [name for name in {HEAVY} if name in sys.modules]
    found[words] = {{"code": code, "heavy": heavy, "said": said.getvalue()}}
    if heavy:
        break
print(json.dumps(found))
"""
"""Asks the program, one command after another in one process, until one loads what is heavy."""


def asked(commands: list[str]) -> dict:
    """Exit code, heavy packages and text of each command."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ASK],
        cwd=ROOT,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_answers_without_arithmetic_load_nothing_heavy():
    for words, one in asked(ANSWERED).items():
        assert (one["code"], one["heavy"]) == (0, []), f"dmodel {words}: {one}"
        assert one["said"].strip()


def test_mistakes_are_told_without_loading_what_is_heavy():
    for words, one in asked(list(REFUSED)).items():
        assert (one["code"], one["heavy"]) == (2, []), f"dmodel {words}: {one}"
        assert REFUSED[words] in one["said"].replace("\n", " "), f"dmodel {words}: {one}"


@pytest.mark.parametrize("words", ["catalog models gpt-2-2layers", "catalog profiles prior"])
def test_what_counts_says_so_itself(words):
    """Parameters and coefficients are computed; the test above would see it otherwise."""
    [one] = asked([words]).values()
    assert one["code"] == 0 and "jax" in one["heavy"]


def test_importing_changes_no_setting_of_jax():
    code = """
import jax
before = dict(jax.config.values)
import dmodel, dmodel.api, dmodel.cli, dmodel.theory
for name in dir(dmodel):
    getattr(dmodel, name)
assert dict(jax.config.values) == before
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted by Linux")
@pytest.mark.parametrize("chosen", [None, "2"])
def test_small_matrices_take_one_thread_unless_the_user_says_more(chosen):
    code = """
import os
from dmodel.cli.compiled import THREADS, use_one_thread_for_matrices
use_one_thread_for_matrices()
import numpy
import scipy.linalg
numpy.linalg.eigh(numpy.eye(300))
scipy.linalg.cho_factor(numpy.eye(300))
print(len(os.listdir("/proc/self/task")), os.environ.get(THREADS))
"""
    own = {name: value for name, value in os.environ.items() if name != THREADS}
    own |= {} if chosen is None else {THREADS: chosen}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    threads, left = done.stdout.split()
    assert left == (chosen or "1") and (chosen or threads == "1")


def test_importing_loads_nothing():
    code = f"import dmodel, sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


def test_every_name_is_there_and_stays_what_it_is():
    assert isinstance(dmodel, Surface)
    assert set(dmodel.__all__) <= set(dir(dmodel))
    function = dmodel.design
    __import__("dmodel.design.search")
    assert dmodel.design is function and callable(function)
    with pytest.raises(AttributeError, match="no attribute 'desing'"):
        getattr(dmodel, "desing")  # noqa: B009
    with pytest.raises(ImportError, match="desing"):
        exec("from dmodel import desing")

"""What is built can be installed and works outside of the checkout; what is left out is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PLAN = "--system H100-DGX --devices 64 --model llama-3-8b --global-batch 512 --zero 3"

LONGEST = 6000
"""Bytes of the changelog: what users notice, by release."""

LEFT_OUT = {
    "--version": ("typer", "cli"),
    f"predict {PLAN}": ("typer", "cli"),
    f"diagnose {PLAN} --measured 9s --figure way.png": ("matplotlib", "cli"),
    f"design {PLAN.replace(' --zero 3', '')} --vary precision=bf16,fp8 --figure curve.png": (
        "matplotlib",
        "cli",
    ),
    f"sensitivity {PLAN} --report all": ("matplotlib", "cli"),
    f"sensitivity {PLAN} --global 64": ("SALib", "cli"),
    "demo": ("matplotlib", "cli"),
    "predict rows.parquet": ("pyarrow", "cli"),
    "fit rows.parquet --out profile.json": ("pyarrow", "cli"),
    "mcp": ("mcp", "mcp"),
}
"""Commands, what they need that the base has not, and the extra that brings it."""

WITHOUT = """
import sys
from importlib import metadata

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

version = metadata.version
def told(name):
    if name == {module!r}:
        raise metadata.PackageNotFoundError(name)
    return version(name)

metadata.version = told
sys.modules[{module!r}] = None
from dmodel.__main__ import main
sys.argv[0] = "dmodel"
main()
"""
"""The program where a package is not installed."""


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert [each["name"] for each in cited["authors"]] == ["The dmodel authors"]
    ids = [each["value"] for study in cited["references"] for each in study["identifiers"]]
    assert ids == ["arXiv:2411.01137", "arXiv:2411.13055"]


def test_the_changelog_begins_with_this_version_and_is_short():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = re.search(r"^## \[(.+?)\]", text, flags=re.MULTILINE)
    assert first and first[1] in (project["version"], "Unreleased")
    assert len(text.encode()) <= LONGEST


def say(command: list[str], folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without what the checkout would bring."""
    own = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "XLA_FLAGS"))}
    return subprocess.run(
        command, cwd=folder, env={**own, **settings}, capture_output=True, text=True, timeout=1800
    )


def must(command: list[str], folder: Path) -> str:
    """What a program prints that must not fail."""
    done = say(command, folder)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def build(source: Path, out: Path, target: str) -> Path:
    """Build a wheel or a source distribution; no index is asked."""
    must([sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)], source)
    [found] = out.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


def content(wheel: Path) -> dict[str, int]:
    """Names of the files of a wheel, each with the checksum of its content."""
    with zipfile.ZipFile(wheel) as archive:
        return {each.filename: each.CRC for each in archive.infolist()}


@pytest.mark.parametrize("words", LEFT_OUT)
def test_a_missing_extra_is_one_line_that_says_what_to_install(tmp_path, words):
    module, extra = LEFT_OUT[words]
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    command = [sys.executable, "-c", WITHOUT.format(module=module), *words.split()]
    done = say(command, tmp_path, PYTHONPATH=str(ROOT))
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("dmodel: ") and f"dmodel-jax[{extra}]" in line
    assert module.lower() in line.lower()
    assert [each.name for each in tmp_path.iterdir()] == ["rows.parquet"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel")


@pytest.mark.slow
def test_the_wheel_has_what_users_need(wheel):
    names = set(content(wheel))
    needed = {"dmodel/skill/SKILL.md", "dmodel/py.typed", "dmodel/catalog/data/chips.json"}
    assert needed <= names
    assert not [name for name in names if name.startswith(("tests/", "experiments/", "docs/"))]
    assert not [name for name in names if "__pycache__" in name or "node_modules" in name]


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(wheel, tmp_path):
    source = build(ROOT, tmp_path / "dist", "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    [unpacked] = (tmp_path / "source").iterdir()
    assert content(build(unpacked, tmp_path / "again", "wheel")) == content(wheel)


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    """In a clean environment: first the base alone, then with the shell."""
    must([sys.executable, "-m", "venv", "venv"], tmp_path)
    bin = tmp_path / "venv" / "bin"
    install = [str(bin / "python"), "-m", "pip", "install", "--quiet"]
    install += ["--constraint", str(ROOT / "constraints.txt")]
    must([*install, str(wheel)], tmp_path)
    bare = say([str(bin / "dmodel"), "--version"], tmp_path)
    assert bare.returncode == 2 and len(bare.stderr.splitlines()) == 1
    assert "pip install 'dmodel-jax[cli]'" in bare.stderr
    asked = (
        "import dmodel as dm; site = dm.cluster('H100-DGX', 64); "
        "print(dm.predict(dm.Job('llama-3-8b', 8192, 512), site).step_time_s)"
    )
    assert float(must([str(bin / "python"), "-c", asked], tmp_path)) > 0.0
    must([*install, f"{wheel}[cli]"], tmp_path)
    assert must([str(bin / "dmodel"), "--version"], tmp_path).startswith("dmodel ")
    said = must([str(bin / "dmodel"), "predict", *PLAN.split(), "--json"], tmp_path)
    assert json.loads(said)["step_time_s"] > 0.0
    must([str(bin / "dmodel"), "explore", "--out", "page.html"], tmp_path)
    assert (tmp_path / "page.html").stat().st_size > 100_000
    no = say([str(bin / "dmodel"), "mcp"], tmp_path)
    assert no.returncode == 2 and "pip install 'dmodel-jax[mcp]'" in no.stderr

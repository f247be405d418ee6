"""The structure of the code: imports go one way, the model needs little, files and functions stay
small."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("dmodel", "calibration", "experiments")

LIGHT = {"errors", "installed", "lazily", "units"}
"""What loads nothing but Python's own modules."""

BASE = LIGHT | {"types", "smooth", "once", "struct"}
RECORDS = {"records", "coefficients"}
TABLES = BASE | RECORDS | {"traced", "blocks", "tables"}
BELOW_COST = TABLES | {"footprint", "counts", "launching", "traffic", "placement"}
BELOW_RUN = BELOW_COST | {
    "cost",
    "physics",
    "breakdown",
    "layer",
    "step",
    "goodput",
    "topology",
    "stages",
}
BELOW_REPORT = BELOW_RUN | {
    "run",
    "energy",
    "returns",
    "sensitivity",
    "sweep",
    "design",
    "catalog",
    "profiles",
    "theory",
    "emit",
}
BELOW_REPORT |= {"uncertainty", "codesign", "entries", "recorded", "called", "adam", "parts"}

QUESTION = BASE | {"blocks", "catalog", "columns", "layouts", "profiles", "records", "unlike"}
"""What a question in words stands on."""

WORDS = QUESTION | {
    "question",
    "checks",
    "recomputation",
    "named_shape",
    "shape",
    "settings",
    "resolve",
}
WORDS |= {"adapters", "counted", "described", "deciding", "laid_out", "left_blank", "machine"}
WORDS |= {"varying", "asked"}
WORDS |= {"varying", "asked"}
"""From words to records, and what stands on nothing above it."""

ANSWERS = {"prediction", "room", "explain", "searching", "api", "diagnose", "solve"}
ANSWERS |= {"tokens", "training_run", "sense", "montecarlo"}

ALLOWED: dict[str, set[str]] = {
    **dict.fromkeys(LIGHT, set()),
    "types": set(),
    "struct": set(),
    "smooth": {"types"},
    "once": set(),
    "coefficients": BASE,
    "records": BASE | {"coefficients", "footprint"},
    "footprint": BASE | {"coefficients"},
    "blocks": BASE | RECORDS,
    "traced": {"types"},
    "tables": BASE | RECORDS | {"traced", "blocks"},
    "unlike": BASE | RECORDS | {"blocks"},
    "counts": TABLES,
    "launching": TABLES,
    "traffic": TABLES,
    "placement": BASE | RECORDS | {"counts"},
    "levels": BASE | {"records", "coefficients"},
    "cost": BELOW_COST | {"levels"},
    "physics": BELOW_COST | {"cost"},
    "breakdown": BELOW_COST | {"cost", "physics"},
    "layer": BELOW_COST | {"cost", "physics"},
    "messages": BELOW_COST | {"cost"},
    "hiding": BELOW_COST | {"cost", "physics", "messages"},
    "hosted": BELOW_COST | {"cost"},
    "step": BELOW_COST | {"cost", "physics", "breakdown", "layer", "messages", "hiding", "hosted"},
    "by_stage": BELOW_COST | {"cost", "stages"},
    "goodput": BASE,
    "topology": BASE | {"records"},
    "stages": BASE,
    "columns": set(),
    "layouts": BASE | {"stages", "unlike"},
    "question": QUESTION,
    "checks": BASE | {"question"},
    "recomputation": BELOW_COST | {"cost", "question"},
    "adapters": {"question"},
    "counted": QUESTION | {"counts", "question"},
    "named_shape": QUESTION | {"counted", "counts", "question"},
    "shape": QUESTION | {"adapters", "counted", "counts", "named_shape", "question"},
    "settings": LIGHT | {"catalog", "columns", "question"},
    "known": QUESTION | {"question", "recomputation", "shape", "settings"},
    "described": QUESTION | {"question", "settings"},
    "deciding": QUESTION | {"described", "question"},
    "laid_out": QUESTION | {"question"},
    "machine": QUESTION | {"question", "deciding"},
    "left_blank": BELOW_COST | {"cost", "step"},
    "resolve": QUESTION
    | {"question", "checks", "recomputation", "counted", "shape", "deciding", "laid_out"}
    | {"machine", "left_blank", "named_shape"},
    "varying": QUESTION | {"question", "described", "deciding", "resolve"},
    "asked": WORDS | BELOW_RUN,
    "prediction": WORDS
    | BELOW_RUN
    | {"by_stage", "run", "energy", "recorded", "uncertainty", "explain", "report"},
    "room": WORDS | BELOW_RUN | {"prediction"},
    "terms": BELOW_RUN | {"messages", "hosted"},
    "explain": WORDS | BELOW_RUN | {"terms", "uncertainty", "prediction"},
    "searching": WORDS | BELOW_RUN | {"run", "sweep", "design"},
    "called": BELOW_RUN | {"recorded"},
    "tokens": BASE | RECORDS | {"counts", "codesign"},
    "training_run": LIGHT | {"goodput", "recorded"},
    "sense": LIGHT | {"recorded", "catalog", "codesign"},
    "diagnose": WORDS | BELOW_RUN | {"run", "recorded", "uncertainty"},
    "solve": WORDS | BELOW_RUN | {"run", "recorded", "sensitivity"},
    "api": WORDS | BELOW_REPORT | {"prediction", "searching", "diagnose", "solve", "montecarlo"},
    "flattened": BASE,
    "entries": set(),
    "structures": set(),
    "operations": set(),
    "adam": set(),
    "recording": {"operations"},
    "recorded": {"entries", "structures", "operations", "recording"},
    "parts": BASE | {"entries", "structures"},
    "devices": set(),
    "sweep": BELOW_RUN | {"flattened", "devices"},
    "montecarlo": WORDS
    | BELOW_RUN
    | {"parts", "sweep", "recorded", "design", "searching", "uncertainty"},
    "run": BELOW_RUN,
    "design": BELOW_RUN | WORDS | {"run", "sweep", "recorded", "adam", "parts"},
    "codesign": BELOW_RUN | {"run", "adam", "sweep", "recorded", "design", "profiles"},
    "sensitivity": BELOW_RUN | WORDS | {"run", "sweep", "design", "recorded", "parts"},
    "energy": BELOW_RUN | {"run"},
    "returns": BELOW_RUN | {"run", "energy", "sweep", "design"},
    "catalog": LIGHT | {"topology", "blocks", "counts", "records", "struct", "types"},
    "emit": LIGHT | {"blocks", "records", "types", "stages"},
    "profiles": LIGHT | {"catalog", "coefficients", "footprint", "types"},
    "uncertainty": BELOW_RUN | {"recorded", "profiles"},
    "theory": BELOW_RUN | {"catalog", "sweep"},
    "report": BELOW_REPORT,
    "explore": BELOW_REPORT | WORDS | ANSWERS | {"operations", "recording"},
    "cli": BELOW_REPORT | WORDS | ANSWERS | {"report", "explore"},
}
"""Which parts of `dmodel` each part may import, besides itself; `dmodel/cli.py` and
`dmodel/cli_*.py` are all `cli`."""

COST_LEAVES: set[str] = set()
"""Modules of `dmodel.cost` that their siblings may import."""

CORE = {"jax", "flax", "optax", "numpy"}
SHELL = {"report", "cli"}
HERE = set(sys.stdlib_module_names) | set(PACKAGES)
NOT_IN_THE_MODEL = [
    "experiments",
    "matplotlib",
    "pandas",
    "polars",
    "pyarrow",
    "pydantic",
    "pytest",
    "typer",
]

ELSEWHERE = ("calibration", *NOT_IN_THE_MODEL)
"""What answering a question in words loads nothing of."""

MAX_FUNCTION, MAX_FILE = 60, 400


class Import(NamedTuple):
    """One imported module (or name of a module) and where it is imported."""

    target: str
    line: int
    in_function: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(p): p for package in PACKAGES for p in sorted((ROOT / package).rglob("*.py"))
}
IDS = sorted(SOURCES)


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"), filename=str(SOURCES[module]))


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def targets(node: ast.Import | ast.ImportFrom, module: str) -> list[str]:
    """Full names of what a statement imports: a submodule where the name is one, else the module it
    comes from."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        is_package = SOURCES[module].name == "__init__.py"
        parents = module.split(".")[: len(module.split(".")) - node.level + is_package]
        base = ".".join([*parents, *([node.module] if node.module else [])])
    return [full if (full := f"{base}.{alias.name}") in SOURCES else base for alias in node.names]


@functools.cache
def imports(module: str) -> tuple[Import, ...]:
    """All imports of a module, those inside functions too; those for type checkers only are left
    out."""
    found: list[Import] = []

    def walk(node: ast.AST, in_function: bool) -> None:
        if is_type_checking(node):
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.extend(Import(name, node.lineno, in_function) for name in targets(node, module))
        in_function = in_function or isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        )
        for child in ast.iter_child_nodes(node):
            walk(child, in_function)

    walk(tree(module), False)
    return tuple(found)


def layer(module: str) -> str:
    """`dmodel.cost.overlap` -> `cost`; `dmodel` itself -> ``; `dmodel.cli_demo` and
    `dmodel.__main__` -> `cli`."""
    name = [*module.split("."), ""][1]
    return "cli" if name.startswith("cli") or name == "__main__" else name


def within_dmodel(module: str, found: Import) -> str | None:
    """Why a module of `dmodel` may not import another one, or None."""
    mine, other = layer(module), layer(found.target)
    if other == "" and mine not in SHELL:
        return (
            "imports the package's surface, which imports it: take the name from the module that "
            "defines it"
        )
    if mine == "cost" and other == "cost":
        leaf = found.target.split(".")[-1]
        siblings = module != "dmodel.cost" and found.target != module and leaf not in COST_LEAVES
        return (
            (
                "cost modules do not import each other: move what they share to counts, or pass "
                "it as "
                "an argument"
            )
            if siblings
            else None
        )
    if other not in ("", mine) and other not in ALLOWED[mine]:
        return f"{mine} stands below {other} or beside it; it may import {sorted(ALLOWED[mine])}"
    return None


def complaint(module: str, found: Import) -> str | None:
    """Why an import is not allowed, or None."""
    package, other = module.split(".")[0], found.target.split(".")[0]
    if other == "experiments" and package != "experiments":
        if layer(module) == "cli" and found.in_function:
            return None
        return "nothing imports experiments"
    if other == "tests":
        return "tests import the code, not the other way round"
    if (
        package == "dmodel"
        and other == "calibration"
        and not (layer(module) in ("cli", "api") and found.in_function)
    ):
        return (
            "dmodel takes what calibration makes as data; only the CLI and the API import it, "
            "inside their functions"
        )
    if package == "calibration" and other == "dmodel" and layer(found.target) == "cli":
        return "the CLI is the roof: it imports calibration"
    if package == "dmodel" and other == "dmodel" and module != "dmodel":
        return within_dmodel(module, found)
    if module == "dmodel" and layer(found.target) in SHELL:
        return "importing dmodel must not need the shell's packages"
    return None


def test_there_is_something_to_check():
    assert {"dmodel", "dmodel.types", "dmodel.smooth"} <= set(SOURCES)


@pytest.mark.parametrize("module", [m for m in IDS if m.startswith("dmodel.")])
def test_every_module_has_a_layer(module):
    assert layer(module) in ALLOWED, (
        f"{module}: say in ALLOWED what it may import, and who may import it"
    )


@pytest.mark.parametrize("module", IDS)
def test_imports_go_one_way(module):
    wrong = [
        f"{SOURCES[module]}:{i.line}: {i.target}: {why}"
        for i in imports(module)
        if (why := complaint(module, i))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("dmodel.smooth", Import("dmodel.records.plan", 1, False)),
        ("dmodel.counts", Import("dmodel.cost.compute", 1, False)),
        ("dmodel.blocks.attention", Import("dmodel.tables", 1, False)),
        ("dmodel.records.model", Import("dmodel.blocks", 1, False)),
        ("dmodel.cost.compute", Import("dmodel.cost.overlap", 1, False)),
        ("dmodel.step", Import("dmodel.design.relax", 1, True)),
        ("dmodel.catalog.loader", Import("dmodel.cost.memory", 1, False)),
        ("dmodel.step", Import("calibration.fit", 1, True)),
        ("dmodel.cli", Import("calibration.fit", 1, False)),
        ("dmodel.api", Import("calibration.fit", 1, False)),
        ("dmodel.resolve", Import("calibration.traces", 1, True)),
        ("dmodel.question", Import("dmodel.resolve", 1, True)),
        ("dmodel.catalog.stack", Import("dmodel.question", 1, False)),
        ("dmodel.step", Import("dmodel.resolve", 1, True)),
        ("dmodel.step", Import("dmodel", 1, False)),
        ("dmodel", Import("dmodel.report", 1, False)),
        ("calibration.fit", Import("experiments.bench", 1, True)),
        ("calibration.fit", Import("dmodel.cli", 1, True)),
    ],
)
def test_a_wrong_import_is_seen(module, found):
    assert complaint(module, found)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        ("dmodel.cost.compute", Import("dmodel.counts", 1, False)),
        ("dmodel.cli_demo", Import("calibration.fit", 1, True)),
        ("dmodel.api", Import("calibration.fit", 1, True)),
        ("dmodel.resolve", Import("dmodel.question", 1, False)),
        ("dmodel.design.search", Import("dmodel.resolve", 1, False)),
        ("dmodel.design.search", Import("dmodel.design.relax", 1, False)),
        ("experiments.bench", Import("calibration.fit", 1, False)),
        ("calibration.fit", Import("dmodel.step", 1, False)),
        ("dmodel", Import("dmodel.step", 1, False)),
    ],
)
def test_a_right_import_passes(module, found):
    assert complaint(module, found) is None


def test_no_import_cycles():
    """Imports made while a module loads; those inside functions come later and cannot close a
    cycle."""
    graph = {
        m: {
            i.target
            for i in imports(m)
            if i.target in SOURCES and i.target != m and not i.in_function
        }
        for m in IDS
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail("import cycle: " + " -> ".join(e.args[1]))


def model_modules() -> list[str]:
    lean = ("calibration.collect", "calibration.importers")
    return [
        m
        for m in IDS
        if m.startswith(lean) or (m.split(".")[0] == "dmodel" and layer(m) not in SHELL)
    ]


@pytest.mark.parametrize("module", model_modules())
def test_the_model_names_only_core_packages(module):
    outside = {i.target.split(".")[0] for i in imports(module) if not i.in_function} - HERE
    assert outside <= CORE, (
        f"{module}: {sorted(outside - CORE)} at module level; import it inside the function that "
        "needs it"
    )


def test_the_model_loads_only_core_packages():
    """In a process of its own; jax and flax themselves bring scipy, rich and yaml, so those are not
    asked about."""
    code = (
        f"import sys, {', '.join(model_modules())}\nprint(*[m for m in {NOT_IN_THE_MODEL} if m in "
        "sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


JOB = """
import dmodel
job, site = dmodel.Job("llama-3-8b", 4096, 16), dmodel.cluster("H100-DGX", 8)
"""
ASKED = {
    "import": "import dmodel",
    "resolve": JOB
    + """
from dmodel.api import question
from dmodel.resolve import resolve
assert resolve(question(job, site, stack="nemo/25.09")).assumptions
""",
    "predict": JOB + "assert dmodel.predict(job, site, stack='nemo/25.09').step_time_s > 0.0",
    "design": JOB + "assert dmodel.design(job, site, stack='nemo/25.09').exact",
}
"""What people ask in Python, by what they ask for."""


@pytest.mark.parametrize("asked", ASKED)
def test_questions_load_nothing_of_calibration_nor_of_the_shell(asked):
    loaded = f"\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}} & {set(ELSEWHERE)})"
    done = subprocess.run(
        [sys.executable, "-c", ASKED[asked] + loaded],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


EXTRAS = ("browser", "cli", "cluster", "mcp", "sampling")
"""Further dependencies that sources of the project import where they are there."""


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    lines = [
        *project["dependencies"],
        *(line for extra in EXTRAS for line in optional[extra]),
    ]
    return {re.split(r"[\[<>=~ ]", line)[0] for line in lines} - {project["name"]}


def test_every_import_is_declared():
    used = {(m, i.target.split(".")[0]) for m in IDS for i in imports(m)}
    wrong = [(m, t) for m, t in used if t not in HERE and t.lower() not in declared()]
    assert not wrong, f"not among the dependencies of pyproject.toml: {sorted(wrong)}"


def test_core_dependencies_are_the_four():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {re.split(r"[\[<>=~ ]", line)[0] for line in project["dependencies"]} == CORE


def test_constraints_are_plain_pins():
    lines = [
        x
        for x in (ROOT / "constraints.txt").read_text().splitlines()
        if x and not x.startswith("#")
    ]
    assert [x for x in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", x)] == []
    assert declared() <= {x.split("==")[0].lower() for x in lines}


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function from its first statement after the docstring to its last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("module", IDS)
def test_files_and_functions_stay_small(module):
    lines = SOURCES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE, f"{SOURCES[module]}: {lines} lines; split it by concept"
    functions = [
        n for n in ast.walk(tree(module)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [
        f"{SOURCES[module]}:{f.lineno}: {f.name}: {body_lines(f)} lines"
        for f in functions
        if body_lines(f) > MAX_FUNCTION
    ]
    assert not long, "\n".join(long)


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [p for name in done.stdout.split("\0") if name and (p := ROOT / name).is_file()]


def test_the_project_stands_on_its_own():
    """No tracked text names a folder of one machine or of a neighbour; no lock file records where
    packages came from."""
    # built from pieces, so that this file passes its own test
    machine = re.compile(
        r"(?<![\w.])/(?:" + "|".join(("work", "tmp", "root", "home", "Users")) + r")/\w"
    )
    neighbour = re.compile(re.escape("../" + "shared"))
    wrong = [
        str(p)
        for p in tracked_files()
        if p.name in ("uv.lock", "poetry.lock", "Pipfile.lock", "pdm.lock")
    ]
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a figure or a Parquet file: no text to read
        hits = (m for pattern in (machine, neighbour) for m in pattern.finditer(text))
        wrong += [f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {m.group()}" for m in hits]
    assert not wrong, "\n".join(wrong)

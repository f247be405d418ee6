"""Writes the reference pages of the site from the code and the data files that they describe.

`write(folder)` is called when the site is built; what it writes is not kept in version control.
"""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dmodel
from dmodel import catalog, profiles
from dmodel.catalog import stack as stacks
from dmodel.cli.app import COMMANDS
from dmodel.cli.catalog import _entries, _one
from dmodel.coefficients import SPECS
from dmodel.terms import TERMS

MODULES = ("catalog", "profiles")
"""Public names that are modules: their own public names follow on their page."""


def write(folder: Path) -> list[Path]:
    """Write all reference pages into an emptied folder; the paths that were written."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = {
        **api_pages(),
        **command_pages(),
        "terms": terms_page(),
        "coefficients": coefficients_page(),
        "settings": settings_page(),
        "profiles": profiles_page(),
        "models": models_page(),
        **entry_pages("chips", "Chips"),
        **entry_pages("systems", "Systems"),
        **stack_pages(),
    }
    pages["index"] = index_page(pages)
    return [_save(folder / f"{name}.md", text) for name, text in pages.items()]


def _save(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
    return path


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(x) for x in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    """A cell's text, without what Markdown would read as markup."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    for mark in ("|", "*", "<", "$", "_"):
        text = text.replace(mark, "\\" + mark)
    return text.replace("\n", " ")


def contents(names: Iterable[str], depth: int = 1) -> str:
    """A list of pages that the site's menu shows."""
    return "\n".join(["```{toctree}", f":maxdepth: {depth}", "", *names, "```"])


def index_page(pages: dict[str, str]) -> str:
    """The first page of the reference: one line for each group of pages."""
    tops = [name for name in pages if "/" not in name]
    return "# Reference\n\nAll of it is made from the code and its data files.\n\n" + contents(tops)


# --- the Python interface ---


def api_pages() -> dict[str, str]:
    """A page for every public name, and their list."""
    found = {f"api/{name}": _api_page(name) for name in dmodel.__all__}
    says = {name: _cell(_first_line(getattr(dmodel, name))) for name in dmodel.__all__}
    rows = [f"| [`dmodel.{name}`](api/{name}.md) | {text} |" for name, text in says.items()]
    lines = ["| name | what it is |", "|---|---|", *rows]
    text = "# Python interface\n\n`import dmodel as dm`\n\n" + "\n".join(lines) + "\n\n"
    return {"api": text + contents(found), **found}


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def _api_page(name: str) -> str:
    thing = getattr(dmodel, name)
    if name in MODULES:
        return _module_page(name, thing)
    kind = "autoclass" if inspect.isclass(thing) else "autofunction"
    methods = _methods(thing) if kind == "autoclass" else []
    members = f"\n   :members: {', '.join(methods)}" if methods else ""
    return f"# {name}\n\n```{{eval-rst}}\n.. {kind}:: dmodel.{name}{members}\n```"


def _methods(kind: type) -> list[str]:
    """Public methods of a class that say what they do; `replace` comes with every record."""
    own = {n: f for n, f in vars(kind).items() if not n.startswith("_") and inspect.isfunction(f)}
    return [n for n, f in own.items() if n != "replace" and inspect.getdoc(f)]


def _module_page(name: str, module: Any) -> str:
    lines = [f".. automodule:: dmodel.{name}", "   :no-members:", ""]
    for each in module.__all__:
        thing = getattr(module, each)
        if callable(thing):
            kind = "autoclass" if inspect.isclass(thing) else "autofunction"
            lines += [f".. {kind}:: dmodel.{name}.{each}", ""]
    return f"# {name}\n\n```{{eval-rst}}\n" + "\n".join(lines) + "\n```"


# --- the commands ---


def command_pages() -> dict[str, str]:
    """A page for every command, with its whole help, and their list."""
    found = {f"commands/{name}": _command_page(name) for name in COMMANDS}
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| [`dmodel {n}`](commands/{n}.md) | {_cell(t)} |" for n, t in COMMANDS.items()]
    text = """# Commands

Every command takes `--json`: one document on standard output, and all else on standard error.
Exit codes: 0 done, 1 the answer is no, 2 bad usage or input.

"""
    return {"commands": text + "\n".join(lines) + "\n\n" + contents(found), **found}


def _command_page(name: str) -> str:
    return f"# dmodel {name}\n\n{COMMANDS[name]}\n\n```text\n{help_of(name)}\n```"


def help_of(name: str) -> str:
    """What `dmodel NAME --help` prints."""
    asked = [sys.executable, "-m", "dmodel", name, "--help"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


# --- registries ---


def terms_page() -> str:
    """Terms of a step: meaning, formula, coefficients, what hides them, source."""
    lines = ["# Terms of a step", "", "The step time is the sum of these. "]
    lines[-1] += "`prediction.explain(name)` shows them with the numbers of one plan."
    for name, term in TERMS.items():
        lines += ["", f"## {name}", "", f"{term.meaning[0].upper()}{term.meaning[1:]}.", ""]
        lines += [f"- formula: `{term.formula}`"]
        if term.coefficients:
            lines += ["- coefficients: " + ", ".join(f"`{c}`" for c in term.coefficients)]
        lines += [f"- hidden by: {term.hides}"] if term.hides else []
        lines += [f"- source: {term.source}"]
    return "\n".join(lines)


def coefficients_page() -> str:
    """Coefficients with unit, meaning, bound, value without measurements, width, scope."""
    rows = [
        [f"`{n}`", s.meaning, s.unit, s.bound, s.default, s.width, s.scope]
        for n, s in SPECS.items()
    ]
    heads = ("name", "meaning", "unit", "bound", "without rows", "width", "belongs to")
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += [f"| {r[0]} | " + " | ".join(_cell(x) for x in r[1:]) + " |" for r in rows]
    return (
        "# Coefficients\n\nA fit moves these. `width` is the standard deviation of the prior, of "
        "the logarithm (`positive`) or of the logit (`share`). Values far from what is expected "
        "are explained in `docs/notes/coefficients.md`.\n\n" + "\n".join(lines)
    )


def settings_page() -> str:
    """Settings that a stack, a row or `--set` may state."""
    rows = [
        (x["name"], x["kind_of_value"], x["allowed"], x["meaning"])
        for x in _entries("settings", whole=True)
    ]
    heads = ("name", "kind of value", "allowed", "meaning")
    return "# Settings\n\nStated in a stack's file, a column of a table, or `--set NAME=VALUE`." + (
        "\n\n" + table(heads, rows)
    )


def profiles_page() -> str:
    """Shipped profiles."""
    heads = ("name", "rows", "about")
    found = [_one("profiles", name) for name in profiles.names()]
    rows = [(f["name"], f["rows"], f["about"]) for f in found]
    return "# Profiles\n\nFitted coefficients that come with the package.\n\n" + table(heads, rows)


def models_page() -> str:
    """Models by name, with their parameters and source."""
    rows = []
    for name in catalog.names("models"):
        found = _one("models", name)
        counted = f"{found['parameters']:,}", f"{found['active_parameters']:,}"
        rows.append((name, *counted, found["source"], found["date"]))
    heads = ("name", "parameters", "active", "source", "date")
    return (
        "# Models\n\nA `config.json` of Hugging Face works in place of a name ([](../models.md))."
        "\n\n" + table(heads, rows)
    )


def entry_pages(kind: str, title: str) -> dict[str, str]:
    """A page for every chip or system, and their list."""
    names = catalog.names(kind)
    found = {f"{kind}/{name}": _entry_page(kind, name) for name in names}
    lines = ["| name | about |", "|---|---|"]
    lines += [f"| [{n}]({kind}/{n}.md) | {_cell(_one(kind, n)['about'])} |" for n in names]
    return {kind: f"# {title}\n\n" + "\n".join(lines) + "\n\n" + contents(found), **found}


def _entry_page(kind: str, name: str) -> str:
    found = _one(kind, name)
    heads = ("number", "value", "unit", "date", "source")
    rows = [[f[k] for k in ("field", "value", "unit", "date", "source")] for f in found["fields"]]
    lines = [f"# {name}", "", _cell(found["about"]), ""]
    if found["aliases"]:
        lines += ["Also: " + ", ".join(found["aliases"]) + ".", ""]
    lines += [table(heads, rows), ""]
    for each in found.get("compared", ()):
        lines += [f"- compared on {each['date']}: {_cell(each['what'])}: {_cell(each['with'])}"]
    lines += [f"- in doubt: {_cell(each)}" for each in found.get("doubts", ())]
    return "\n".join(lines)


def stack_pages() -> dict[str, str]:
    """A page for every stack, and their list."""
    names = stacks.names()
    about = {x["name"]: x["about"] for x in _entries("stacks", whole=True)}
    found = {f"stacks/{name.replace('/', '-')}": _stack_page(name) for name in names}
    lines = ["| name | about |", "|---|---|"]
    lines += [f"| [{n}](stacks/{n.replace('/', '-')}.md) | {_cell(about[n])} |" for n in names]
    text = (
        "# Stacks\n\nWhat software does, as facts with condition, source and date. A file of your "
        "own works like a shipped one: `--stack ./ours.toml`.\n\n"
    )
    return {"stacks": text + "\n".join(lines) + "\n\n" + contents(found), **found}


def _stack_page(name: str) -> str:
    found = _one("stacks", name)
    lines = [f"# {name}", ""]
    for fact in found["facts"]:
        sets = {**fact["set"], **fact["means"]}
        sets = ", ".join(f"`{k}` {v}" for k, v in sets.items())
        when = ", ".join(f"`{k}` {v}" for k, v in fact["when"].items())
        lines += [f"- **{_cell(fact['says'])}**: {sets}" + (f" when {when}" if when else "") + "."]
        lines += [f"  {_cell(fact['source'])}, {fact['date']}. {_cell(fact['evidence'])}".rstrip()]
    return "\n".join(lines)

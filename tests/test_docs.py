"""The README, the site's pages and the reference: short where they promise it, complete, and no
command in them that the program does not know."""

import re
import shlex
import sys
from pathlib import Path

import pytest

import dmodel
from dmodel.cli.app import COMMANDS, loaded

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p for p in DOCS.rglob("*.md") if not {"reference", "notes", "skill"} & set(p.parts))
LINK = re.compile(r"\[[^\]]*\]\(([^)#]+?)(?:#[^)]*)?\)")
WITHOUT_SHELL = ("collect", "experiment")
"""Commands that pass words on to other programs."""


@pytest.fixture(scope="module")
def generate():
    sys.path.insert(0, str(DOCS))
    try:
        import generate

        yield generate
    finally:
        sys.path.remove(str(DOCS))


def test_the_readme_is_short_and_begins_with_a_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 6 * 1024
    assert len(text.split()) <= 900
    assert "make demo" in "\n".join(text.splitlines()[:10])
    before = text[: text.index("dmodel design --system")]
    assert len(before.split()) <= 150  # words until the first number of a job of one's own


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_links_lead_to_files(page: Path):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [t for t in LINK.findall(text) if "://" not in t]
    made = [t for t in targets if "reference/" in t or t == "explorer.html"]
    missing = [t for t in targets if t not in made and not (page.parent / t).exists()]
    assert not missing


def commands(text: str) -> list[str]:
    """Lines of code that call the program, without comments and pipes."""
    lines = re.findall(r"^!?(?:\.venv/bin/)?(dmodel [a-z].*)$", "\n".join(code(text)), re.MULTILINE)
    return [re.split(r" #| \| | > ", line)[0] for line in lines]


def code(text: str) -> list[str]:
    """Fenced blocks, with lines that go on joined."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block.replace("\\\n", " ") for block in blocks]


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_commands_and_their_options_exist(page: Path):
    for line in commands(page.read_text(encoding="utf-8")):
        name, *words = shlex.split(line)[1:]
        assert name in COMMANDS, line
        if name in WITHOUT_SHELL:
            continue
        known = {o for p in loaded(name).params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        options = {w.split("=")[0] for w in words if re.match(r"--[a-z]", w)}
        assert options <= known, line


def test_every_page_is_in_a_menu():
    menus = "\n".join(p.read_text(encoding="utf-8") for p in PAGES)
    listed = set(re.findall(r"^([\w./-]+)$", menus, re.MULTILINE))
    names = {str(p.relative_to(DOCS).with_suffix("")) for p in PAGES}
    alone = {n for n in names - {"index"} if n not in listed and Path(n).name not in listed}
    assert not alone


def test_every_public_name_and_command_has_a_page(generate):
    assert {f"api/{name}" for name in dmodel.__all__} <= set(generate.api_pages())
    found = generate.command_pages()
    assert {f"commands/{name}" for name in COMMANDS} <= set(found)
    assert "--json" in found["commands/predict"]


def test_registries_are_pages(generate):
    from dmodel.coefficients import SPECS
    from dmodel.terms import TERMS

    terms, coefficients = generate.terms_page(), generate.coefficients_page()
    assert all(f"## {name}\n" in terms for name in TERMS)
    assert all(f"`{name}`" in coefficients for name in SPECS)


def test_cells_of_tables_do_not_break_them(generate):
    assert generate.table(["a|b"], [["x_y\n*"]]).splitlines()[0] == "| a\\|b |"
    assert generate.table(["a"], [["x_y\n*"]]).splitlines()[-1] == "| x\\_y \\* |"

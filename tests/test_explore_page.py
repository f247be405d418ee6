"""The page in a real browser says what Python says, and asks nobody else."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dmodel.asked import ask
from dmodel.explore import page as pages
from dmodel.explore.structures import models
from dmodel.profiles import load
from dmodel.question import Question
from dmodel.resolve import resolve
from dmodel.step import step_time

CHROMIUM = shutil.which("chromium")
SOURCE = Path(pages.__file__).parent / "source"
ENTRIES = {"page.js": ("main.ts", "iife", True), "cases.js": ("cases.ts", "cjs", False)}


def _browser() -> Any:
    if CHROMIUM is None:
        return None
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    return sync_playwright


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
needs_browser = pytest.mark.skipif(_browser() is None, reason="no chromium, or no playwright")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page with the programs of plain decoders alone."""
    monkey = pytest.MonkeyPatch()
    monkey.setattr(pages, "FEWEST", max(map(len, models().values())))
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(pages.page(load("generic")), encoding="utf-8")
    monkey.undo()
    return path


@pytest.fixture(scope="module")
def opened(written: Path):
    """The page in the browser, and what it wrote and asked for."""
    with _browser()() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        heard: list[str] = []
        page.on("console", lambda line: heard.append(line.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url))
        page.goto(written.as_uri())
        wait(page, "window.dmodelAnswer")
        yield page, heard
        browser.close()


def wait(page: Any, condition: str) -> None:
    """Until a condition holds; asked from outside, as the page lets nobody evaluate text."""
    for _ in range(600):
        if page.evaluate(f"Boolean({condition})"):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


ASKED = "JSON.stringify(window.dmodelAnswer)"


def said(page: Any) -> dict[str, Any]:
    return json.loads(page.evaluate(ASKED))


def by_python(columns: dict[str, Any]) -> float:
    question = Question(columns)
    asked, found = ask(question, "generic"), resolve(question)
    records = found.cluster, found.model, found.plan, asked.coefficients
    return float(step_time(*records).total)


@needs_browser
def test_the_page_opens_alone(opened, written):
    page, heard = opened
    own = [x for x in heard if not x.startswith(("blob:", written.as_uri()))]
    assert own == []
    assert "error" not in said(page)


@needs_browser
def test_numbers_are_those_of_python(opened, tmp_path):
    page, _ = opened
    rng = random.Random(4)
    for _ in range(8):
        columns: dict[str, Any] = {
            "model": rng.choice(["llama-3-8b", "llama-3-70b", "gpt-3-175b"]),
            "accelerator": rng.choice(["H100-80GB", "A100-80GB", "GB200"]),
            "stack": rng.choice(["nemo/25.09", "megatron-lm", "fsdp"]),
            "precision": "bf16",
            "n_accel": 512.0,
            "tp": float(rng.choice([1, 2, 4, 8])),
            "pp": float(rng.choice([1, 2, 4])),
            "micro_batch": 1.0,
            "global_batch": float(rng.choice([512, 1024, 2048])),
            "seq_len": float(rng.choice([2048, 8192])),
        }
        words = "&".join(
            f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in columns.items()
        )
        page.evaluate("window.dmodelAnswer = null")
        page.evaluate(f"location.hash = {json.dumps('v=1&' + words)}")
        wait(page, "window.dmodelAnswer")
        found = said(page)["values"]["outputs.step_time_s"]
        assert found == pytest.approx(by_python(columns), rel=1e-9)


@needs_browser
def test_dragging_and_the_link(opened):
    page, _ = opened
    page.click("#reset")
    before = said(page)["values"]["outputs.step_time_s"]
    page.focus("[id='bandwidth.inter']")
    page.keyboard.press("ArrowLeft")
    after = said(page)["values"]["outputs.step_time_s"]
    assert after > before
    link = page.evaluate("location.hash")
    page.click("#reset")
    page.evaluate(f"location.hash = {json.dumps(link)}")
    wait(page, f"Math.abs(dmodelAnswer.values['outputs.step_time_s'] / {after} - 1) < 1e-12")


@needs_browser
def test_what_is_typed_never_becomes_markup(opened):
    page, _ = opened
    page.fill("#model", "<img src=x onerror=alert(1)>")
    wait(page, "window.dmodelAnswer.error")
    assert page.locator("img").count() == 0
    assert "<img" in page.text_content("#error")
    page.click("#reset")


@pytest.mark.skipif(not (SOURCE / "node_modules").exists(), reason="esbuild is not installed")
@pytest.mark.parametrize("name", ENTRIES)
def test_the_bundle_is_built_from_its_sources(name, tmp_path):
    entry, form, small = ENTRIES[name]
    options = ["--bundle", f"--format={form}", "--target=es2022", f"--outfile={tmp_path / name}"]
    options += ["--minify"] if small else []
    esbuild = SOURCE / "node_modules/.bin/esbuild"
    done = subprocess.run(
        [str(esbuild), entry, "--log-level=warning", *options],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / name).read_text() == (SOURCE.parent / "bundle" / name).read_text()

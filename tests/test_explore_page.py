"""The page in a real browser says what Python says, and asks nobody else."""

from __future__ import annotations

import json
import math
import random
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from calibration.traces.neighbours import compact, neighbours
from dmodel.asked import ask, laid
from dmodel.catalog.configs.reading import read
from dmodel.cli.app import app
from dmodel.cli.question import plan_document
from dmodel.counts import model_flops_per_token
from dmodel.explore import page as pages
from dmodel.explore.limits import limits
from dmodel.explore.structures import models, offered
from dmodel.named_shape import completed
from dmodel.prediction import answer
from dmodel.profiles import load
from dmodel.question import Question
from dmodel.run import CONVENTION
from dmodel.theory import laws
from dmodel.theory.gpus import gpu
from dmodel.theory.layout import KINDS, LevelLayout
from dmodel.theory.profile import training
from dmodel.theory.tiling import RELAXED

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
    plain = next(iter(models()))
    some = {name: of for name, of in offered().items() if name in (plain, f"{plain} 3")}
    monkey.setattr(pages, "offered", lambda: some)
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    path.write_text(pages.page(load("generic"), published=compact()), encoding="utf-8")
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


DRAWN = "window.dmodelAnswer && (dmodelAnswer.error || dmodelAnswer.near)"
"""The page has drawn all of its last answer."""


def said(page: Any) -> dict[str, Any]:
    wait(page, DRAWN)
    return json.loads(page.evaluate(ASKED))


def link(page: Any) -> str:
    """The address, which holds what the page shows once nothing has changed for a moment."""
    wait(page, f"{DRAWN} && dmodelAnswer.link")
    return page.evaluate("location.hash")


def by_python(words: dict[str, Any]) -> dict[str, Any]:
    """The answer of `dmodel predict`, and the nearest published runs."""
    columns = {name: word for name, word in words.items() if name != "system"}
    question = Question(columns, system=words.get("system", ""))
    asked = ask(question, "generic")
    found = laid(asked, {})
    own = completed(question)[0].columns
    sizes = {name: float(getattr(found.model, name)) for name in ("n_layers", "d_model", "seq_len")}
    run = {**sizes, **own, **plan_document(found.plan)}
    return answer(asked, found.plan) | {"near": neighbours(run, 5)}


def show(page: Any, words: dict[str, Any]) -> dict[str, Any]:
    """What the page says of a link."""
    text = "&".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in words.items())
    page.evaluate("window.dmodelAnswer = null")
    page.evaluate(f"location.hash = {json.dumps('v=2&' + text)}")
    wait(page, "window.dmodelAnswer && (dmodelAnswer.error || dmodelAnswer.ends)")
    return said(page)


def at_random(rng: random.Random) -> dict[str, Any]:
    """A job with a layout."""
    return {
        "model": rng.choice(["llama-3-8b", "llama-3-70b", "gpt-3-175b"]),
        "accelerator": rng.choice(["H100-80GB", "A100-80GB", "GB200", "MI300X"]),
        "stack": rng.choice(["nemo/25.09", "megatron-lm", "fsdp", "torchtitan"]),
        "precision": "bf16",
        "n_accel": 512.0,
        "tp": float(rng.choice([1, 2, 4, 8])),
        "pp": float(rng.choice([1, 2, 4])),
        "micro_batch": 1.0,
        "global_batch": float(rng.choice([512, 1024, 2048])),
        "seq_len": float(rng.choice([2048, 8192])),
    }


@needs_browser
@pytest.mark.slow
def test_the_study_of_speed_sees_every_drag(written, tmp_path):
    asked = ["--quick", "--json", "--page", str(written), "--out", str(tmp_path)]
    command = [sys.executable, "-m", "experiments.explorer_speed", *asked]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # one loop a process
    first, *drags = json.loads(done.stdout)["rows"]
    assert first["count"] == 1 and 0 < first["median_ms"] < 60_000
    assert len(drags) == 2
    for each in drags:
        assert 0 < each["count"] <= 20 and 0 < each["median_ms"] <= each["p95_ms"]


@needs_browser
def test_the_page_opens_alone(opened, written):
    page, heard = opened
    own = [x for x in heard if not x.startswith(("blob:", written.as_uri()))]
    assert own == []
    assert "error" not in said(page)


WIDTH = 0.06
"""How far an end of an interval may lie from Python's, of its distance from the middle: the page's
covariances are rounded, and its principal axes may point the other way."""


def agree(found: dict[str, Any], want: dict[str, Any]) -> None:
    """Numbers are the same, ends of the interval nearly."""
    values = found["values"]
    for name in ("step_time_s", "tokens_per_s", "memory_bytes"):
        other = "memory_bytes_per_device" if name == "memory_bytes" else name
        assert values[f"outputs.{name}"] == pytest.approx(want[other], rel=1e-9)
    assert values["oom_probability"] == pytest.approx(want["oom_probability"], rel=1e-9, abs=1e-12)
    for name, seconds in want["breakdown"].items():
        own = values[f"time.{name.removesuffix('_s')}"]
        assert own == pytest.approx(seconds, rel=1e-9, abs=1e-9 * want["step_time_s"])
    middle = want["step_time_s"]
    for side in ("low", "high"):
        ends = found["ends"]["step_time_s"][side], want[f"step_time_s_{side}"]
        far = [abs(math.log(x / middle)) for x in ends]
        assert far[0] == pytest.approx(far[1], rel=WIDTH)
    pairs = [*zip(found["near"], want["near"], strict=True)]
    apart = [other.distance for _, other in pairs]
    for one, other in pairs:
        assert one["distance"] == pytest.approx(other.distance, abs=1e-9)
        alone = sum(abs(x - other.distance) < 1e-9 for x in apart) == 1 and other.distance < max(
            apart
        )
        if alone:  # of rows as far as each other any may come first
            assert (one["source"], one["layout"]) == (other.source, other.layout)
            assert one["rate"] == pytest.approx(other.tokens_per_s_per_device, rel=1e-4)


def check_numbers(page: Any, seed: int, many: int) -> None:
    rng = random.Random(seed)
    for _ in range(many):
        columns = at_random(rng)
        agree(show(page, columns), by_python(columns))


@needs_browser
def test_numbers_are_those_of_python(opened):
    check_numbers(opened[0], 4, 24)


@needs_browser
@pytest.mark.slow
def test_many_numbers_are_those_of_python(opened):
    check_numbers(opened[0], 5, 200)


RUN = {
    "model": "llama-3-70b",
    "accelerator": "H100-80GB",
    "stack": "megatron-lm",
    "precision": "bf16",
    "n_accel": 512.0,
    "tp": 8.0,
    "pp": 2.0,
    "micro_batch": 1.0,
    "global_batch": 1024.0,
    "seq_len": 4096.0,
}


@needs_browser
@pytest.mark.parametrize(
    "system", ["H100-RoCE-800", "H100-EFA-3200", "H100-Superpod", "H100-Llama-3"]
)
def test_a_system_may_be_named(opened, system):
    words = {**RUN, "system": system}
    agree(show(opened[0], words), by_python(words))
    opened[0].click("#reset")


@needs_browser
def test_what_the_page_lacks_is_said(opened):
    found = show(opened[0], {**RUN, "system": "H100-SuperPOD-Rail"})
    assert "network of 4 levels are not on this page" in found["error"]
    found = show(opened[0], {**RUN, "system": "H100-Superpod", "bandwidth.inter": 0.5})
    assert "has 3 levels, and this is the outer one of two" in found["error"]
    opened[0].click("#reset")
    link(opened[0])


@needs_browser
@pytest.mark.parametrize("unit", ["", "rate", "mfu"])
def test_a_measurement_in_any_unit_is_the_same_time(opened, unit):
    page, _ = opened
    values = show(page, RUN)["values"]
    seconds = 1.25 * values["outputs.step_time_s"]
    rate = RUN["global_batch"] * RUN["seq_len"] / seconds / RUN["n_accel"]
    text = {"": seconds, "rate": rate, "mfu": 100.0 * values["outputs.mfu"] / 1.25}[unit]
    found = show(page, {**RUN, "measured": repr(text), "unit": unit})
    assert found["measured"] == pytest.approx(seconds, rel=1e-9)
    assert "1.25 × predicted" in page.text_content("#summary")
    assert page.locator("#time .mark").count() == page.locator("#curve .mark").count() == 1


@needs_browser
def test_the_link_holds_both_configurations(opened):
    page, _ = opened
    show(page, {**RUN, "bandwidth.inter": 0.5, "axis": "n_accel", "shown": "rate"})
    page.click("#pin")
    page.fill("#tp", "4")
    page.fill("#measured", "12")
    before, kept = said(page), link(page)
    page.click("#reset")
    assert said(page)["kept"] is None
    link(page)
    page.evaluate(f"location.hash = {json.dumps(kept)}")
    wait(page, "dmodelAnswer && dmodelAnswer.kept && dmodelAnswer.measured === 12")
    assert said(page)["values"] == before["values"]
    assert said(page)["kept"] == before["kept"]
    assert link(page) == kept
    assert page.input_value("#axis") == "n_accel"
    heads = page.locator("#time thead th").all_text_contents()
    assert heads == ["now", "share", "kept", "difference"]
    rows = page.locator("#time tbody tr").all()
    sums = [float(x) for x in rows[-1].locator("td").all_text_contents()[0].split()[:1]]
    assert sums[0] == pytest.approx(before["values"]["outputs.step_time_s"], rel=1e-2)
    page.click("#reset")


@needs_browser
def test_the_search_leaves_the_page_free_and_its_plans_apply(opened):
    page, _ = opened
    show(page, {**RUN, "n_accel": 64.0, "global_batch": 256.0})
    page.evaluate("window.dmodelSearch = null")
    page.click("#search")
    wait(page, "window.dmodelSearch")
    best = json.loads(page.evaluate("JSON.stringify(dmodelSearch)"))
    assert best["considered"] > 1000
    assert page.locator("#best tbody tr").count() == len(best["plans"]) == 10
    for i in (0, 9):
        page.locator("#best button").nth(i).click()
        values, want = said(page)["values"], best["plans"][i]
        assert values["outputs.step_time_s"] == pytest.approx(want["seconds"], rel=1e-12)
        assert values["outputs.memory_bytes"] == pytest.approx(want["bytes"], rel=1e-12)
    page.click("#reset")


@needs_browser
def test_nothing_is_hard_to_use(opened):
    """No serious fault by axe, on desktop and phone, light and dark."""
    axe = SOURCE / "node_modules/axe-core/axe.min.js"
    if not axe.exists():
        pytest.skip("axe-core is not installed (npm install in dmodel/explore/source)")
    page, _ = opened
    show(page, {**RUN, "measured": "20"})
    page.click("#pin")
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)
        page.evaluate(axe.read_text(encoding="utf-8"))
        ran = "axe.run().then((found) => { window.axeFound = found.violations; })"
        page.evaluate("window.axeFound = null")
        page.evaluate(ran)
        wait(page, "window.axeFound")
        found = json.loads(page.evaluate("JSON.stringify(axeFound)"))
        serious = [x for x in found if x["impact"] in ("serious", "critical")]
        assert not serious, [(x["id"], x["nodes"][0]["html"]) for x in serious]
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width
    page.set_viewport_size({"width": 1280, "height": 720})
    page.emulate_media(color_scheme="light")
    page.click("#reset")


@needs_browser
def test_dragging_and_the_link(opened):
    page, _ = opened
    page.click("#reset")
    before = said(page)["values"]["outputs.step_time_s"]
    page.focus("[id='bandwidth.inter']")
    page.keyboard.press("ArrowLeft")
    after = said(page)["values"]["outputs.step_time_s"]
    assert after > before
    kept = link(page)
    page.click("#reset")
    link(page)
    page.evaluate(f"location.hash = {json.dumps(kept)}")
    wait(
        page,
        f"{DRAWN} && Math.abs(dmodelAnswer.values['outputs.step_time_s'] / {after} - 1) < 1e-12",
    )


@needs_browser
def test_commands_ask_the_same(opened):
    page, _ = opened
    found = show(page, {**RUN, "zero_stage": 3.0, "recompute": "0.5", "bandwidth.inter": 0.5})
    page.click("#shell summary")
    wait(page, "document.getElementById('command').textContent")
    ask_, _, _, emit, _, _, design = page.text_content("#command").splitlines()
    words = shlex.split(ask_)
    assert words[:2] == ["dmodel", "predict"]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    want = json.loads(done.stdout)
    seconds = want["step_time_s"]
    assert found["values"]["outputs.step_time_s"] == pytest.approx(seconds, rel=1e-9)
    assert shlex.split(emit) == [*words, "--emit", "megatron"]
    assert shlex.split(design)[-2:] == ["--emit", "megatron"]
    page.click("#shell summary")


def assert_points_are_those_of_the_study(page: Any, sweep: dict[str, Any]) -> None:
    """Under the slider the study's formulas are evaluated in the layout of a neighbour."""
    layouts, system = sweep["layouts"], gpu("H100 SXM")
    for share in (0.0, 0.37, 0.62, 1.0):
        page.fill("#width", str(share))
        said(page)
        width = layouts[0][0] * (layouts[-1][0] / layouts[0][0]) ** share
        above = next((i for i, x in enumerate(layouts) if x[0] >= width), 0)
        tried = []
        for _, *numbers in layouts[max(above - 1, 0) : above + 1]:
            levels = [np.array(numbers[2 * i : 2 * i + 2]) for i in range(len(KINDS))]
            degrees = {f"{kind}_levels": x for kind, x in zip(KINDS, levels, strict=True)}
            m, v, zero_bubble = numbers[2 * len(KINDS) :]
            layout = LevelLayout(**degrees, n_microbatches=m, interleave=v, zero_bubble=zero_bubble)
            run = laws.run(width, rounding=False)
            with jax.enable_x64(True):
                tried.append(float(training(system, run, layout, rules=RELAXED).utilization))
        text = page.locator("#frontier p").nth(1).text_content()
        assert f"width {float(f'{width:.3g}'):,.0f}," in text
        shown = float(text.split(" at ")[1].split(" %")[0]) / 100.0
        assert min(abs(shown - x) for x in tried) < 6e-4


@needs_browser
def test_the_run_stands_beside_the_frontier(opened):
    page, _ = opened
    values = show(page, {**RUN, "tokens": "15e12"})["values"]
    page.click("#limits summary")
    wait(page, "document.querySelector('#frontier .curve')")
    asked = ask(Question(RUN), "generic")
    each = float(model_flops_per_token(asked.model, CONVENTION))
    text = page.text_content("#frontier")
    compute = f"{15e12 * each:.1e}".replace("e+", " · 10^")
    assert f"this run, {compute} FLOP at {100 * values['outputs.mfu']:.1f} %" in text
    dense = limits()["gpus"]["H100 SXM"]["dense"]
    assert f"{dense['linear_end'][0]:.1e}".replace("e+", " · 10^") in text
    assert_points_are_those_of_the_study(page, dense)
    page.click("#limits summary")


CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 24,
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "vocab_size": 128000,
    "max_position_embeddings": 8192,
}


@needs_browser
def test_a_pasted_configuration_is_answered_and_linked(opened, tmp_path):
    page, _ = opened
    show(page, RUN)
    page.click("#own summary")
    page.fill("#config", json.dumps(CONFIG))
    page.click("#take")
    found, kept = said(page), link(page)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    columns = {k: v for k, v in RUN.items() if k != "model"}
    question = Question(columns, model=read(path, RUN["seq_len"]).model)
    asked = ask(question, "generic")
    want = answer(asked, laid(asked, {}).plan)
    assert found["values"]["outputs.step_time_s"] == pytest.approx(want["step_time_s"], rel=1e-9)
    memory = found["values"]["outputs.memory_bytes"]
    assert memory == pytest.approx(want["memory_bytes_per_device"], rel=1e-9)
    page.click("#reset")
    link(page)
    page.evaluate(f"location.hash = {json.dumps(kept)}")
    seconds = found["values"]["outputs.step_time_s"]
    wait(page, f"{DRAWN} && dmodelAnswer.values['outputs.step_time_s'] === {seconds!r}")
    page.fill("#config", "<img src=x onerror=alert(1)>")
    page.click("#take")
    assert "not JSON" in page.text_content("#taken")
    assert page.locator("img").count() == 0
    page.click("#reset")


@needs_browser
@pytest.mark.parametrize("own", ["{", "[]", '{"blocks": []}', '{"blocks": [{"layers": "x"}]}'])
def test_a_link_with_a_model_that_is_none_says_so(opened, own):
    page, _ = opened
    page.evaluate("window.dmodelAnswer = null")
    page.evaluate(f"location.hash = {json.dumps('v=2&model=llama-3-8b&own=' + own)}")
    wait(page, "window.dmodelAnswer")
    assert "the link's model" in page.text_content("#notice")
    page.click("#reset")


@needs_browser
def test_what_is_typed_never_becomes_markup(opened):
    page, _ = opened
    page.fill("#model", "<img src=x onerror=alert(1)>")
    wait(page, "window.dmodelAnswer && dmodelAnswer.error")
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

"""How soon the explorer's page answers when it opens, and when a slider is dragged.

Claim: the first answer stands a second after opening, and a drag is drawn within 50 ms.

The page is opened in Chromium without a window, by Playwright, from a file. Opening: from the start
of navigation to the first answer. Drag: arrow keys on the slider of the inner bandwidth, one every
30 ms; from the input event to the end of the frame that draws its answer, with the chart over that
bandwidth and over the number of devices. A frame of a 60 Hz screen is 16.7 ms. Beside other work
on the machine the figures mean little.
`python -m experiments.explorer_speed [--page FILE] [--quick] [--json] [--out DIR]`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibration.traces.neighbours import compact
from dmodel.errors import InputError
from dmodel.explore.page import page as text_of_page
from dmodel.profiles import load
from dmodel.report import style
from experiments.study import Line, deliver, parse, plain_arguments, run, say

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEEDS = "Chromium and Playwright: make browser"

SLIDER = "bandwidth.intra"
CHARTS = (SLIDER, "n_accel")
"""What the chart is drawn over while the slider moves."""

BETWEEN_MS = 30
"""Time between two keys [ms]."""

OPENINGS, KEYS = 5, 180
"""How often the page is opened, and keys for each chart [count]."""

FIRST_ANSWER = """
let kept = null;
Object.defineProperty(globalThis, "dmodelAnswer", {
  get: () => kept,
  set: (value) => { kept = value; if (value) globalThis.firstAnswer ??= performance.now(); },
});
"""
"""Notes when the page has its first answer; before any script of the page."""

DRAWN = """() => {
  globalThis.drawn = [];
  document.addEventListener("input", () => {
    const start = performance.now();
    const frame = () => {
      if (!globalThis.dmodelAnswer) return requestAnimationFrame(frame);
      const channel = new MessageChannel();
      channel.port1.onmessage = () => globalThis.drawn.push(performance.now() - start);
      channel.port2.postMessage(0);
    };
    requestAnimationFrame(frame);
  }, true);
}"""
"""Notes, for each input, the time until the frame with its answer has been drawn: a message that a
frame's callback sends arrives behind the drawing of that frame."""


def opened(browser: Any, address: str) -> tuple[Any, float]:
    """A new page, and the time until its first answer [ms]."""
    page = browser.new_page()
    page.add_init_script(FIRST_ANSWER)
    page.goto(address)
    return page, until(page, "globalThis.firstAnswer ?? null")


def until(page: Any, value: str) -> Any:
    """What an expression gives once it is not null, asked from outside.

    Raises:
      InputError: it stayed null for a minute.
    """
    for _ in range(1200):
        if (found := page.evaluate(value)) is not None:
            return found
        page.wait_for_timeout(50)
    raise InputError("the page gave no answer within a minute: does it open in a browser?")


def dragged(page: Any, axis: str, keys: int) -> list[float]:
    """Times from an input event to the end of the frame with its answer [ms]."""
    page.select_option("#axis", axis)
    page.wait_for_timeout(1000)
    page.evaluate("drawn.length = 0")
    page.locator(f'[id="{SLIDER}"]').focus()
    for i in range(keys):
        page.keyboard.press("ArrowLeft" if i // 20 % 2 else "ArrowRight")
        page.wait_for_timeout(BETWEEN_MS)
    page.wait_for_timeout(1000)
    return page.evaluate("drawn")


def line(what: str, times: list[float]) -> Line:
    """The distribution of times [ms]."""
    middle, late = np.quantile(times, (0.5, 0.95))
    return {
        "what": what,
        "count": len(times),
        "median_ms": float(middle),
        "p95_ms": float(late),
        "largest_ms": float(max(times)),
    }


def measured(address: str, openings: int, keys: int) -> dict[str, list[float]]:
    """Times by what was done [ms]."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {"first answer after opening": []}
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(openings):
            page, took = opened(browser, address)
            found["first answer after opening"].append(took)
            page.close()
        page, _ = opened(browser, address)
        page.evaluate(DRAWN)
        for axis in CHARTS:
            say(f"dragging {SLIDER}, chart over {axis}")
            found[f"drag of {SLIDER}, chart over {axis}"] = dragged(page, axis, keys)
        browser.close()
    return found


def draw(times: dict[str, list[float]]) -> Figure:
    """Shares of times below each time."""
    figure = style.new_figure(5.0, 3.0)
    axes = figure.subplots()
    for what, each in times.items():
        axes.step(sorted(each), np.arange(1, len(each) + 1) / len(each), where="post", label=what)
    axes.set(xlabel="ms", ylabel="share", xscale="log", title="The explorer's page in Chromium")
    axes.legend(fontsize="small")
    return figure


def main() -> None:
    """Opening and dragging."""
    options = _options()
    if find_spec("playwright") is None or shutil.which("chromium") is None:
        raise InputError(f"this study needs {NEEDS}")
    if options.page and not options.page.is_file():
        raise InputError(f"--page: {options.page} is no file; write one with `dmodel explore`")
    with tempfile.TemporaryDirectory() as place:
        path = options.page or Path(place) / "explorer.html"
        if not options.page:
            say("writing the page")
            path.write_text(text_of_page(load("generic"), published=compact()), encoding="utf-8")
        counts = (1, 20) if options.quick else (OPENINGS, KEYS)
        times = measured(path.resolve().as_uri(), *counts)
    lines = [line(what, each) for what, each in times.items()]
    deliver("explorer_speed", lines, draw(times), options, digits=".1f")


def _options() -> argparse.Namespace:
    parser = plain_arguments(__doc__ or "")
    parser.add_argument("--page", type=Path, help="a page that `dmodel explore` wrote")
    return parse(parser)


if __name__ == "__main__":
    run(main)

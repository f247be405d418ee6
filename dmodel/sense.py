"""What no sane run does, beside what published runs have: said in a line, refused far beyond them.

The largest values that were ever published stand in `catalog/data/seen.json`, which
`python -m calibration.seen` writes from the shipped rows, and in `TRAINED` below.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from dmodel.recorded import Recorded

BEYOND = 10.0
"""Times the largest published value from which an answer is a "no" [1]."""

TRAINED = (270e9 / 530e9, 36e12 / 0.6e9)
"""Tokens for each parameter that a token uses, least and most of published runs: Megatron-Turing
NLG 530B on 270e9 (Smith et al. 2022, arXiv 2201.11990), Qwen3-0.6B on 36e12 (Qwen team 2025, arXiv
2505.09388)."""

LAW_PARAMETERS, LAW_TOKENS = 16e9, 500e9
"""Largest model and most tokens that the loss law was fitted to (Hoffmann et al. 2022, arXiv
2203.15556, abstract)."""


WORTH_SAYING = 2.0
"""Batches over the critical one from which an answer says so: two thirds of such a batch's tokens
bring nothing (McCandlish et al. 2018, arXiv 1812.06162: a run takes 1 + B / B_critical times the
least tokens) [1]."""


class Oddity(NamedTuple):
    """Something that published runs do not have.

    Attributes:
      name: of the quantity. text: for people. times: over the largest published value [1]; 0 where
        it is no reason to refuse.
    """

    name: str
    text: str
    times: float


def _critical(parameters: Any, tokens: Any, batch: Any) -> dict[str, Any]:
    """The critical batch of a run [token], by the laws of loss and batch."""
    from dmodel.codesign.laws import laws, quality

    flop = 6.0 * parameters * tokens
    return {"critical": quality(parameters, tokens, batch, flop, laws()).critical}


CRITICAL = Recorded(_critical)


def over_critical(parameters: float, tokens: float, batch: float) -> float:
    """A batch over the critical one [1].

    Args:
      parameters: that a token uses [count]. tokens: of the run. batch: tokens of a step.
    """
    return batch / float(CRITICAL(parameters, tokens, batch)["critical"])


@cache
def seen() -> dict[str, float]:
    """The largest published values by name."""
    from dmodel.catalog.loader import table

    return {name: float(entry["value"]) for name, entry in table("seen").items()}


def oddities(
    parameters: float, batch: float, mfu: float, tokens: float | None, loss: float | None = None
) -> tuple[Oddity, ...]:
    """What an answer has that published runs do not have, the oddest first.

    Args:
      parameters: that a token uses [count]. batch: tokens of a step. mfu: predicted [1].
      tokens: of the run; None = as many as the data law has for the batch's sake. loss: asked for.
    """
    from dmodel.codesign.laws import laws

    law: Any = laws().data
    usual = float(law.ratio) * parameters ** float(law.exponent)
    found = [
        _of_batch(over_critical(parameters, tokens or usual, batch)),
        _of_mfu(mfu),
        *([] if tokens is None else _of_tokens(parameters, tokens, batch)),
        *([] if loss is None else [_of_loss(parameters, tokens or usual)]),
    ]
    return tuple(sorted((odd for odd in found if odd), key=lambda odd: -odd.times))


def _of_batch(over: float) -> Oddity | None:
    if over < WORTH_SAYING:
        return None
    most = seen()["batch_over_critical"]
    lost = over / (1.0 + over)
    text = f"the batch is {over:.3g} times the critical one: {lost:.0%} of its tokens bring nothing"
    return Oddity("batch", f"{text} (published runs: up to {most:.3g} times)", over / most)


def _of_mfu(mfu: float) -> Oddity | None:
    most = seen()["mfu"]
    if mfu <= most:
        return None
    text = f"utilization of {mfu:.0%} is above all that was published ({most:.0%})"
    return Oddity("mfu", text, mfu / most)


def _of_tokens(parameters: float, tokens: float, batch: float) -> list[Oddity]:
    each, (least, most) = tokens / parameters, TRAINED
    found = []
    if tokens < batch:
        text = f"the run has {tokens:.3g} tokens, and a single step takes {batch:.3g}"
        found.append(Oddity("steps", text, float("inf")))
    if not least <= each <= most:
        ends = f"published runs have {least:.2g} to {most:,.0f}"
        text = f"{each:.3g} tokens for each parameter; {ends}"
        found.append(Oddity("tokens", text, max(each / most, least / each)))
    return found


def _of_loss(parameters: float, tokens: float) -> Oddity | None:
    if parameters <= LAW_PARAMETERS and tokens <= LAW_TOKENS:
        return None
    text = (
        f"the loss law is extrapolated: it was fitted up to {LAW_PARAMETERS:.2g} parameters and "
        f"{LAW_TOKENS:.2g} tokens"
    )
    return Oddity("loss", text, 0.0)

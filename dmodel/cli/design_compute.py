"""Loss and tokens of a run that a compute budget decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dmodel.cli.design_options import DesignJob

if TYPE_CHECKING:
    from dmodel.asked import Asked


def by_compute(
    job: DesignJob, asked: Asked, free: tuple[str, ...], laws: Any
) -> tuple[float | None, float | None, list[str]]:
    """Loss and tokens: as given, or those that a compute budget decides; and in words."""
    if job.flop is None:
        return job.loss, job.tokens, []
    if "shape" in free:
        loss, text = _loss_of(job.flop, laws)
        return loss, job.tokens, [text]
    tokens = _tokens_of(job.flop, asked)
    return (
        job.loss,
        tokens,
        [f"{tokens:.4g} tokens: what {job.flop:.3g} FLOP train {asked.model_name} on"],
    )


def _loss_of(flop: float, laws: Any) -> tuple[float, str]:
    """The loss that a compute budget reaches at best, `min over N of L(N, C / 6N)`. Usual shapes,
    small batches."""
    import numpy as np

    from dmodel.codesign.laws import loss

    sizes = np.geomspace(1e6, 1e14, 1601)
    values = np.asarray(loss(sizes, flop / (6.0 * sizes), laws.loss))
    best = int(values.argmin())
    return (
        float(values[best]),
        (
            f"loss {values[best]:.4f}: the least that {flop:.3g} FLOP reach by the loss law, at "
            f"{sizes[best]:.2g} parameters"
        ),
    )


def _tokens_of(flop: float, asked: Asked) -> float:
    """Tokens that a compute budget trains a model on: `C` over its FLOP per token, 6N and causal
    attention."""
    from dmodel import counts

    return flop / float(counts.model_flops_per_token(asked.model, "6N+6Lhs"))

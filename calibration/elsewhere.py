"""Descents of a fit by the workers of an executor: the same starts together as in one process, so
that the ends have the same bits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import Executor
from contextlib import closing

import numpy as np

from calibration.descent import End, Enough, Progress, descents
from calibration.objective import Objective
from calibration.pooling import Prior
from calibration.ratios import Data
from dmodel.parts import Arrays, Block, parts


def descents_elsewhere(
    loss: Objective,
    starts: Sequence[np.ndarray],
    executor: Executor,
    *,
    adam: int,
    lbfgs: int,
    progress: Progress,
    enough: Enough,
    together: int,
    curved: bool,
) -> list[End]:
    """`descent.descents` of a fit's loss. Groups of starts are descended from at once, and what is
    beyond enough is dropped.

    Args:
      starts, adam, lbfgs, progress, enough, together: as `descents` takes them. executor: of what
        computes. curved: whether L-BFGS is told the curvature of the rows.
    """
    known = {"prior": loss.prior, "data": loss.data, "adam": adam, "lbfgs": lbfgs, "curved": curved}
    cut = [np.stack(starts[i : i + together]) for i in range(0, len(starts), together)]
    blocks = [Block(descent_block, {**known, "starts": each}) for each in cut]
    found: list[End] = []
    with closing(_ends(blocks, executor)) as every:
        for ends in every:
            found += ends
            progress(len(found) / len(starts), min(end.loss for end in found))
            if enough(found):
                break
    progress(1.0, min(end.loss for end in found))
    return found


def _ends(blocks: Sequence[Block], executor: Executor) -> Generator[list[End], None, None]:
    """Ends of each group, in order."""
    with closing(parts(blocks, executor)) as every:
        for part in every:
            pairs = zip(part.arrays["parameters"], part.arrays["loss"].tolist(), strict=True)
            yield [End(p, loss) for p, loss in pairs]


def descent_block(
    *, prior: Prior, data: Data, starts: np.ndarray, adam: int, lbfgs: int, curved: bool
) -> Arrays:
    """What a worker makes of some starts: where they end, `[start, P]`, and the losses there."""
    loss = Objective(prior, data)
    ends = descents(
        loss,
        list(starts),
        adam=adam,
        lbfgs=lbfgs,
        progress=lambda done, value: None,
        curvature=loss.inverse if curved else None,
    )
    return {
        "parameters": np.stack([end.parameters for end in ends]),
        "loss": np.array([end.loss for end in ends]),
    }

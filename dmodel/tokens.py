"""How many tokens a run takes: a number, the data law's, or those that reach a loss."""

from __future__ import annotations

import math
from typing import Any

from dmodel import counts
from dmodel.errors import InputError


def by_data_law(model: Any) -> tuple[float, str]:
    """Tokens by the data law, and that in words."""
    from dmodel.codesign.laws import DATA_LAWS, DEFAULT

    law = DATA_LAWS[DEFAULT["data"]]
    ratio, exponent = float(law.law.ratio), float(law.law.exponent)  # type: ignore[union-attr]
    tokens = ratio * float(counts.active_parameters(model)) ** exponent
    return tokens, f"{tokens:.4g} tokens by the data law ({law.source})"


def to_loss(model: Any, loss: float) -> tuple[float, str]:
    """Tokens with which a model reaches a loss by the loss law, and that in words: the law solved
    for D, of a batch far below the critical one.

    Raises:
      InputError: no number of tokens takes this model there.
    """
    from dmodel.codesign.laws import DEFAULT, LOSS_LAWS, laws
    from dmodel.codesign.outcome import parameters

    chosen = laws()
    law, n = chosen.loss, float(parameters(model, chosen))
    rho = float(law.mixing)
    of_size = (float(law.by_parameters) * n ** -float(law.alpha)) ** (1.0 / rho)
    least = float(law.irreducible) + of_size**rho
    if not loss > least:
        raise InputError(
            f"--loss {loss:g}: expected more than {least:.4f} nat/token, what {n:.3g} parameters "
            "reach with endless tokens by the loss law; ask for a larger model or a higher loss"
        )
    of_data = ((loss - float(law.irreducible)) ** (1.0 / rho) - of_size) ** rho
    tokens = math.exp(math.log(float(law.by_tokens) / of_data) / float(law.beta))
    source = LOSS_LAWS[DEFAULT["loss"]].source
    return tokens, f"{tokens:.4g} tokens to a loss of {loss:g} nat/token ({source})"

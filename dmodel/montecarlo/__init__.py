"""Monte Carlo sweeps over coefficients × plans × jobs: what is not known of the coefficients,
carried through every plan, on as many machines as there are."""

from dmodel.montecarlo.answer import Ranked, Swept, swept
from dmodel.montecarlo.cut import Plans, Sweep, listed, of_space, plans_of, sweep_of

__all__ = [
    "Plans",
    "Ranked",
    "Sweep",
    "Swept",
    "listed",
    "of_space",
    "plans_of",
    "sweep_of",
    "swept",
]

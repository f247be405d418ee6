"""The best plan for a system, a model and a batch: exact search, gradient search, rounding, and the
certificate that compares them.

    design(system, model, n_devices, global_batch, coefficients, *, method, top, base, choices,
    limits, objective, footprint, …) -> Design

asks everything at once. Its parts, in the order in which they are used:

* `problem(system, model, n_devices, global_batch, coefficients, *, base, choices, limits,
  objective, footprint) -> Problem` states what is asked and checks it. `Choices` says what may vary
  (`EVERYTHING`: all of it), `Limits` what must be kept besides memory.
* `exact(problem, top, *, prune, pareto, seconds, progress) -> Ranking`: the best of all valid
  plans, by evaluating them, or in large spaces by proven bounds that leave out most.
  `count(problem.space)`: how many valid plans there are.
* `by_gradient(problem, *, n_starts, seed) -> Found`: descent on relaxed plans, rounding, polish.
* `certify(problem, ranking, merit) -> Certificate`: the gap of one to the other, or to
  `space_bound(problem)`, and in words.
* `candidates(problem, rows) -> list[Candidate]`: rows of either search as plans, with everything
  that the model says of them.
* `evaluate(problem, rows) -> Evaluation` judges rows, `evaluate_draws(problem, rows, drawn)` under
  each draw of the coefficients, `merits(problem, evaluation)` by the
  objective, `excess(problem, rows, evaluation)` against the limits; `uses(limits, system, model,
  plan, …) -> tuple[Use, ...]` names every limited thing with its signed margin.

A `Design` holds `best`, `exact`, `gradient`, `front`, `certificate`, and when nothing fits
`binding`, `closest` and `remedies`.
"""

from dmodel.design.bounds import group_bounds
from dmodel.design.candidate import Candidate, Margin, candidates
from dmodel.design.certify import Certificate, certify, space_bound
from dmodel.design.choices import ALL_PLACEMENTS, EVERYTHING, Choices, PrecisionChoice
from dmodel.design.constraints import Limits, Use, uses
from dmodel.design.judge import Evaluation, Problem, evaluate, evaluate_draws, excess, merits
from dmodel.design.optimum import Design, Found, by_gradient, design, problem
from dmodel.design.remedy import Binding, Remedy
from dmodel.design.search import Ranking, exact
from dmodel.design.space import Space, count

__all__ = [
    "ALL_PLACEMENTS",
    "EVERYTHING",
    "Binding",
    "Candidate",
    "Certificate",
    "Choices",
    "Design",
    "Evaluation",
    "Found",
    "Limits",
    "Margin",
    "PrecisionChoice",
    "Problem",
    "Ranking",
    "Remedy",
    "Space",
    "Use",
    "by_gradient",
    "candidates",
    "certify",
    "count",
    "design",
    "evaluate",
    "evaluate_draws",
    "exact",
    "excess",
    "group_bounds",
    "merits",
    "problem",
    "space_bound",
    "uses",
]

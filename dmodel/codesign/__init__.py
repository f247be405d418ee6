"""Co-design: model shape, batch, tokens, devices and hardware together with the plan; what limits
are worth; designs that hold under doubt.

    stated  = question(system, model, coefficients, objective=…, limits=Limits(…), free=(…),
                       devices=…, global_batch=…, tokens=None, bounds={name: (low, high)},
                       law=laws(loss=…), bill=BILL, base=Plan, choices=Choices, footprint=…,
                       reliability=…, quantile=None)
                       -> Question
    answer  = solve_question(stated, n_starts=16, seed=0, threads=None)                  -> CoDesign
    prices  = marginal_values(stated, answer.found)                                      -> Prices
    (one more day, dollar, GB, GB/s, …) checked = check_marginal_values(stated, answer.found,
    prices, change=2e-3)           -> (Checked, …)  by solving again
    which   = influence(stated, answer.found)                                            ->
    Influences    (under other published laws) samples = profile_samples(profile, accelerator,
    stack, n=64, seed=0)                 -> Coefficients  `[n]`
    doubt   = robust(stated, answer.found.sizes, samples)                                -> Robust
    (how often a plan is best)
    change  = nearest_change(stated, answer)                                             -> Changes
    (when answer.found is None)
    bound   = proven_bound(stated)                                                       -> float |
    None  (no design is better, proven)

`objective` is "time", "loss", "cost", "energy" or "largest"; `free` holds groups ("shape", "batch",
"tokens", "devices", "hardware") or names of unknowns ("n_layers", "d_model", "ff_ratio",
"head_dim", "hbm_bytes", "bytes_per_s[1]", …); `Limits` are in SI (seconds, dollars, joules).
"""

from dmodel.codesign.answer import Chosen, CoDesign, Evaluations, solve_question
from dmodel.codesign.bill import BILL, Bill, Shares
from dmodel.codesign.bound import proven_bound
from dmodel.codesign.change import Change, Changes, nearest_change
from dmodel.codesign.influence import Influence, Influences, influence
from dmodel.codesign.laws import DEFAULT, KINDS, Laws, laws
from dmodel.codesign.limits import Limits, Margin
from dmodel.codesign.outcome import OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Design
from dmodel.codesign.prices import Checked, Price, Prices, check_marginal_values, marginal_values
from dmodel.codesign.question import Question, question
from dmodel.codesign.robust import Candidate, Robust, draw, profile_samples, robust

__all__ = [
    "BILL",
    "Bill",
    "Candidate",
    "Change",
    "Changes",
    "Checked",
    "Chosen",
    "CoDesign",
    "DEFAULT",
    "Design",
    "Evaluations",
    "Influence",
    "Influences",
    "KINDS",
    "Laws",
    "Limits",
    "Margin",
    "OBJECTIVES",
    "Price",
    "Prices",
    "QUANTITIES",
    "Question",
    "Robust",
    "Shares",
    "check_marginal_values",
    "draw",
    "influence",
    "laws",
    "marginal_values",
    "nearest_change",
    "profile_samples",
    "proven_bound",
    "question",
    "robust",
    "solve_question",
]

"""Co-design: model shape, batch, tokens, devices and hardware together with the plan; what limits are worth; designs that hold under doubt.

    stated  = question(system, model, coefficients, objective=…, limits=Limits(…), free=(…), devices=…, global_batch=…, …)
    answer  = codesign(the same arguments, n_starts=16, seed=0)              -> CoDesign (or solve_question(stated, …))
    prices  = marginal_values(stated, answer.found)                          -> Prices: worth of one more day, dollar, GB, GB/s, …
    checked = check_marginal_values(stated, prices)                          -> Checked, one per price: by re-solving at a changed limit
    laws    = influence(stated, answer.found)                                -> Influences: what other published laws would change, which decides
    doubt   = robust(stated, samples, …)                                     -> Robust: best under uncertainty, share of samples it is best in
    change  = nearest_change(stated, answer)                                 -> Changes: when nothing keeps the limits
    grid    = exhaustive(stated, values)                                     -> Grid: every combination of values with all plans

`objective` is "time", "loss", "cost", "energy" or "largest"; `free` holds groups ("shape", "batch", "tokens", "devices", "hardware") or names
of unknowns ("n_layers", "d_model", "ff_ratio", "head_dim", "hbm_bytes", "bytes_per_s[1]", …).
"""

from dmodel.codesign.answer import Chosen, CoDesign, Evaluations, Question, codesign, question, solve_question
from dmodel.codesign.bill import BILL, Bill, Shares
from dmodel.codesign.laws import DEFAULT, KINDS, Laws, laws
from dmodel.codesign.limits import Limits, Margin
from dmodel.codesign.outcome import OBJECTIVES, QUANTITIES
from dmodel.codesign.plans import Design

__all__ = [
    "BILL",
    "DEFAULT",
    "KINDS",
    "OBJECTIVES",
    "QUANTITIES",
    "Bill",
    "Chosen",
    "CoDesign",
    "Design",
    "Evaluations",
    "Laws",
    "Limits",
    "Margin",
    "Question",
    "Shares",
    "codesign",
    "laws",
    "question",
    "solve_question",
]

"""The study "Data movement limits to frontier model training" (Erdil & Schneider-Joseph 2024, arXiv
2411.01137) as a profile of the model.

`theory()` is its physics, one object that `dmodel.step.step_time` takes in place of the calibrated
one. The surface:

* `gpu(name) -> Cluster` with the tiers of a `Gpu` as its chip; `gpu_names()`.
* `run(d_model, sparse=…, laws=…, rounding=…) -> Run`: shape, data, compute and batch by the study's
  laws.
* `LevelLayout(dp_levels=…, tp_model_levels=…, tp_ff_levels=…, pp_levels=…, ep_levels=…,
  n_microbatches=…, …)`: degrees `[K, *batch]`.
* `training(system, run, layout, rules=EXACT, sharpness=inf) -> Training`: time, utilization,
  communication, memory of the whole run.
* `matmul_time(d1, d2, b, chip, weight_gradient=0, rules=EXACT, sharpness=inf)`.
* `best_layouts(problems, gpu)`, exact, for many `Problem(run, n_gpus)` at once.
* `smallest_clusters(runs, gpu)`, `sweep_widths(gpu, sparse=…, law=…)` and `headline(clusters,
  gpu)`: what scales how far in three months.
* `rounding.layouts_by_gradient(problems, gpu)`: layouts from relaxed degrees, to compare with the
  exact search.
* `frontier.case(gpu, threshold=…)` and `frontier.largest_run(case)`: the largest run without
  rounding; `elasticity.elasticities(case)`: its slopes in every input; `closed_form.t_crit`,
  `t_limit`: the walls by formula.

Beyond the study, all off unless asked for: `laws.STUDY.replace(attention=True)`, attention in the
layers; `reliability=Reliability()` of `dmodel.goodput`, failures and checkpoints within the
deadline; `gpu_names(beyond=True)`, today's chips.

`rules` is EXACT for the study's whole tiles, floors and padding, RELAXED for slopes; `sharpness`
smooths maxima as everywhere.
"""

from dmodel.theory.gpus import Gpu, gpu, gpu_names
from dmodel.theory.laws import Run, run
from dmodel.theory.layout import LevelLayout
from dmodel.theory.profile import IDEAL, Training, theory, training
from dmodel.theory.search import Best, Problem, best_layouts
from dmodel.theory.study import Headline, SmallestCluster, headline, smallest_clusters, sweep_widths
from dmodel.theory.tiling import EXACT, RELAXED, REVISION_3A871BE, Rules, matmul_time

__all__ = [
    "EXACT",
    "IDEAL",
    "RELAXED",
    "REVISION_3A871BE",
    "Best",
    "SmallestCluster",
    "Gpu",
    "Headline",
    "LevelLayout",
    "Problem",
    "Rules",
    "Run",
    "Training",
    "best_layouts",
    "gpu",
    "gpu_names",
    "headline",
    "matmul_time",
    "run",
    "smallest_clusters",
    "sweep_widths",
    "theory",
    "training",
]

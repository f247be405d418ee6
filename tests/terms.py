"""The registry: every public function of the model up to the step, with points to try it at and
corners where it must hold.

`test_terms.py` fails for a public function of `MODULES` that is not here. A term is called as
`call(inputs, sharpness)`.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib import import_module
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dmodel import (
    blocks,
    counts,
    hosted,
    launching,
    layer,
    levels,
    placement,
    smooth,
    step,
    tables,
    traffic,
)
from dmodel.blocks import attention, dense, experts, mamba, part, sparse
from dmodel.cost import collectives, compute, host, interference, memory, overlap, pipeline, power
from dmodel.footprint import Footprint
from dmodel.records import Cluster
from dmodel.types import stack
from tests import points as at

FOOTPRINT = Footprint(
    gradient=1.4,
    optimizer=1.1,
    activation=1.3,
    copies=0.2,
    kept=0.2,
    gathered=0.7,
    logit=1.6,
    last_stage=0.4,
    reserved=2e9,
)

MODULES = (
    smooth,
    tables,
    *(
        import_module(f"dmodel.blocks.{found.name}")
        for found in pkgutil.iter_modules(blocks.__path__)
    ),
    counts,
    hosted,
    launching,
    traffic,
    placement,
    levels,
    collectives,
    compute,
    host,
    memory,
    overlap,
    pipeline,
    interference,
    power,
    hosted,
    layer,
    step,
)


class Term(NamedTuple):
    """call(inputs, sharpness) → arrays; points: inputs off every kink; edges: inputs at corners;
    soft: whether sharpness matters;
    one_unit: outputs are parts of a whole and count as much as they weigh in it."""

    call: Callable[[Any, float], Any]
    points: Sequence[Any]
    edges: Sequence[Any] = ()
    soft: bool = False
    one_unit: bool = False


def public_functions() -> set[str]:
    """`module.function` of everything that `MODULES` define and do not hide."""
    found = set()
    for module in MODULES:
        for name, value in vars(module).items():
            own = getattr(value, "__module__", None) == module.__name__ and not inspect.isclass(
                value
            )
            if own and callable(value) and not name.startswith("_"):
                found.add(f"{module.__name__.split('.')[-1]}.{name}")
    return found


WORK = [{"model": m, "plan": p} for m, p in product((at.MODEL, at.MIXTURE), at.PLANS)]
EDGE_WORK = [{"model": m, "plan": p} for m, p in product(at.EDGE_MODELS, at.EDGE_PLANS)]
MODELS = [{"model": m} for m in (at.MODEL, at.MIXTURE)]
EDGE_MODELS = [{"model": m} for m in at.EDGE_MODELS]

# two kinds of messages on two levels: nbytes [kind], group [level, kind]
GROUPS = ([[1.4, 6.2], [2.6, 1.7]], [[3.1, 1.2], [1.3, 9.5]], [[7.3, 7.3], [5.2, 130.0]])
MESSAGES = [
    {
        "nbytes": np.array([3e7, 2e5]),
        "group": np.array(g),
        "members": np.array([23.0, 140.0]),
        "network": at.NETWORK,
        "c": at.COEFFICIENTS,
    }
    for g in GROUPS
]
EDGE_MESSAGES = [
    {
        "nbytes": np.array(v),
        "group": np.array(g),
        "members": np.array(g).max(1),
        "network": network,
        "c": c,
    }
    for (v, g), (network, c) in product(
        [
            ([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]]),
            ([1e6, 0.0], [[1.0, 8.0], [1.0, 4.0]]),
            ([1e6, 1e9], [[2.0, 1.0], [1.0, 2.0]]),
            ([1e6, 1e6], [[8.0, 2.0], [512.0, 2.0]]),
        ],
        [
            (at.FABRIC, at.COEFFICIENTS),
            # the two levels tie
            (
                at.FABRIC.replace(bytes_per_s=np.array([1e11, 1e11]), latency_s=np.zeros(2)),
                at.IDEAL,
            ),
            (
                at.FABRIC.replace(torus_axes=np.array([3.0, 1.0]), in_network_reduction=np.ones(2)),
                at.IDEAL,
            ),
        ],
    )
]


def message(f: Callable) -> Term:
    """A collective, called with nbytes, group and the fabric of a network."""
    return Term(
        lambda x, p: f(
            x["nbytes"], x["group"], levels.fabric(x["network"], x["c"], p, x["members"])
        ),
        MESSAGES,
        EDGE_MESSAGES,
        soft=True,
    )


def of_work(f: Callable) -> Term:
    """A function of model and plan."""
    return Term(lambda x, p: f(x["model"], x["plan"]), WORK, EDGE_WORK)


def of_site(f: Callable) -> Term:
    """A function of a part's place in a step and of the first part of the model that has the sizes
    it asks for."""
    return Term(lambda x, p: f(part.site(x["model"], x["plan"]), x["model"]), WORK, EDGE_WORK)


def of_model(f: Callable) -> Term:
    return Term(lambda x, p: f(x["model"]), MODELS, EDGE_MODELS)


def plain(
    f: Callable, points: Sequence[Any], edges: Sequence[Any] = (), soft: bool = False
) -> Term:
    """A function of positional numbers."""
    call = (lambda x, p: f(*x, p)) if soft else (lambda x, p: f(*x))
    as_arrays = [
        [tuple(np.asarray(v, np.float64) for v in x) for x in xs] for xs in (points, edges)
    ]
    return Term(call, *as_arrays, soft=soft)


def _found(table: tables.Layer) -> Any:
    """Numbers of the mean layer."""
    rows = table.products
    return table, rows.flops, rows.elements, rows.of(rows.flops, *part.LAST)


def _matmul(x: Any, p: float) -> Any:
    """Products at the rate and operand width of the plan."""
    products = tables.layer(x["model"], x["plan"]).products
    n = len(products.rows)
    rates, operands = (
        stack(*[x["chip"].flops_per_s] * n),
        stack(*[x["plan"].precision.operand_bytes] * n),
    )
    return compute.matmul_time(products, rates, operands, x["chip"], x["c"], p)


CHIPPED = [{**w, "chip": at.CHIP, "c": at.COEFFICIENTS} for w in WORK]
EDGE_CHIPPED = [
    {**w, "chip": at.CHIP, "c": c} for w, c in product(EDGE_WORK[::3], (at.COEFFICIENTS, at.IDEAL))
]

ON_CHIP = [
    {"n": n, "m": m, "chip": at.CHIP, "c": at.COEFFICIENTS}
    for n, m in ((1e10, 2e9), (3e-4, 130.0), (1e-5, 17.0))
]
EDGE_ON_CHIP = [
    {"n": n, "m": m, "chip": at.CHIP, "c": c}
    for n, m, c in product((0.0, 1e9), (0.0, 1.0), (at.COEFFICIENTS, at.IDEAL))
]

STEPS = [
    {
        "system": Cluster(chip=at.CHIP, network=at.NETWORK),
        "model": w["model"],
        "plan": w["plan"],
        "c": at.COEFFICIENTS,
    }
    for w in WORK
]
EDGE_STEPS = [
    {"system": Cluster(chip=at.CHIP, network=at.FABRIC), **w, "c": c}
    for w, c in product(EDGE_WORK, (at.COEFFICIENTS, at.IDEAL))
]
PIPES = [(3.3, 9.2, 1.4), (5.7, 2.2, 2.6), (1.3, 7.7, 4.1)]
EDGE_PIPES = [(1.0, 1.0, 1.0), (8.0, 8.0, 1.0), (8.0, 4.0, 2.0), (2.0, 64.0, 4.0)]
WINDOWS = [(2.0, 1.3, 0.4), (1.0, 3.0, 0.6), (1.0, 5.0, 0.3)]
EDGE_WINDOWS = [(0.0, 0.0, 0.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 0.0)]
BUSY = [
    (0.8, 0.75, 0.3, 0.1, 0.1, 0.2, 0.05, 0.1, 1e11),
    (0.9, 0.9, 0.6, 0.1, 0.1, 0.05, 0.0, 0.05, 1e10),
    (0.9, 0.85, 0.5, 0.04, 0.02, 0.1, 0.02, 0.05, 1e10),
]
BUSY_EDGES = [
    (0.0,) * 9,
    (1.0, 1.0, *(0.0,) * 7),
    (1.0, 1.0, 1.0, *(0.0,) * 6),
    (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 4e11),
]

TERMS: dict[str, Term] = {
    "smooth.maximum": plain(
        smooth.maximum,
        [([1.0, 0.7, 0.2],), ([3.0, 2.9, 1e-3],)],
        [
            ([0.0] * 3,),
            ([1.0] * 3,),
            ([0.0, 1.0, 1.0],),
            ([1e-300, 0.0, 0.0],),
            ([1e300, 1e-300, 0.0],),
        ],
        soft=True,
    ),
    "smooth.maximum_of_two": plain(
        smooth.maximum_of_two,
        [(1.0, 0.7), (3.0, 2.9)],
        [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (1e300, 1e-300)],
        soft=True,
    ),
    "smooth.minimum_of_two": plain(
        smooth.minimum_of_two,
        [(1.0, 0.7), (3.0, 2.9)],
        [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0)],
        soft=True,
    ),
    "smooth.positive": plain(smooth.positive, [(0.4,), (1.7,)], [(0.0,), (-1.0,)]),
    "smooth.with_slope": plain(
        smooth.with_slope(lambda at, along: (at[0] ** 2, 2.0 * at[0] * along[0]))(lambda x: x * x),
        [(0.4,), (1.7,)],
        [(0.0,)],
    ),
    "smooth.minimum": plain(
        smooth.minimum,
        [([1.0, 0.7, 1.2],), ([3.0, 2.9, 0.1],)],
        [([0.0] * 3,), ([1.0] * 3,), ([0.0, 1.0, 1.0],)],
        soft=True,
    ),
    "smooth.excess": plain(
        smooth.excess, [w[:2] for w in WINDOWS], [w[:2] for w in EDGE_WINDOWS], soft=True
    ),
    "smooth.positive_part": plain(
        smooth.positive_part, [w[:2] for w in WINDOWS], [w[:2] for w in EDGE_WINDOWS], soft=True
    ),
    "smooth.ramp": plain(smooth.ramp, [(0.4,), (1.7,), (0.99,)], [(0.0,), (1.0,), (-1.0,)]),
    "smooth.clip": plain(
        smooth.clip,
        [(0.4, 0.1, 0.7), (1.7, 0.3, 0.9), (-0.2, 0.3, 0.9)],
        [(0.3, 0.3, 0.9), (0.9, 0.3, 0.9), (0.3, 0.3, 0.3), (1.0, 0.0, np.inf)],
    ),
    "smooth.inverse": plain(smooth.inverse, [(0.4,), (1.7,)], [(1e-100,), (1e100,)]),
    "power.asked": plain(
        power.asked, [(0.5, 0.2, 0.2, 1.5), (1.0, 0.1, 0.3, 1.1)], [(0.0, 0.0, 0.0, 1.0)]
    ),
    "power.slowed": plain(
        power.slowed,
        [(0.5, 0.2, 0.1, 1.0, 1.4), (0.9, 0.05, 0.02, 1.1, 1.5), (0.2, 0.0, 0.1, 1.0, 1.2)],
        [
            (0.0, 0.0, 0.0, 1.0, 1.4),
            (1.0, 0.0, 0.0, 1.0, 1.0),
            (1.0, 0.0, 0.0, 1.0, 0.0),
            (1e-9, 1e-9, 0.0, 1e9, 1.4),
        ],
        soft=True,
    ),
    "power.wandering": plain(power.wandering, [(1.2,), (1.02,)], [(1.0,), (1e9,)]),
    "tables.summed": plain(
        lambda *x: tables.summed([*x, 0.0]), [(0.4, 0.7), (3.0, 0.1)], [(0.0, 0.0)]
    ),
    "tables.times": plain(
        lambda a, b: (tables.times(a, b), tables.times(1.0, b)), [(0.4, 0.7)], [(0.0, 1.0)]
    ),
    "tables.columns": plain(
        lambda a, b: tables.columns(x=[a, 1.0], y=[0.3, b]), [(0.4, 0.7)], [(0.0, 1.0)]
    ),
    "tables.layer": of_work(lambda m, p: _found(tables.layer(m, p))),
    "tables.parameter_groups": of_model(tables.parameter_groups),
    "tables.layer_keeps": of_work(
        lambda m, p: (lambda x: (tuple(x), x.total))(tables.layer_keeps(m, p))
    ),
    "tables.ends_of": of_work(lambda m, p: tables.ends_of(p)),
    "part.tokens": of_work(part.tokens),
    "part.split_ranks": of_work(lambda m, p: part.split_ranks(p)),
    "part.low_share": of_work(lambda m, p: part.low_share(p)),
    "part.site": of_work(lambda m, p: tuple(part.site(m, p)[:8])),
    "part.opened": of_site(lambda at, m: part.opened(at)),
    "part.wrapped": of_site(lambda at, m: tuple(part.wrapped(at, part.Passes(at.t, at.h), 1.3))),
    "part.entered": of_site(lambda at, m: part.entered(at)),
    "attention.seen": of_site(
        lambda at, m: (attention.seen(at, m.seq_len / 3.0), attention.seen(at, 1e3, 2.1e3))
    ),
    "attention.scored": of_site(lambda at, m: tuple(attention.scored(at, 31.0, 260.0, 0.4))[:3]),
    "attention.off_matrix_units": of_site(
        lambda at, m: [
            attention.off_matrix_units(n + 0.0 * at.t, at.software.flash) for n in (128.0, 108.0)
        ]
    ),
    "attention.rotated": of_site(lambda at, m: tuple(attention.rotated(at, 5e3))),
    "attention.kernels": of_site(lambda at, m: attention.kernels(at)),
    "attention.scores_kept": of_site(lambda at, m: attention.scores_kept(at, 31.0)),
    "sparse.scoring": of_site(
        lambda at, m: (lambda x: (x.flops, x.softmax_bytes, x.behind))(
            sparse.scoring(at, 1300.0, 5e3, 0.4)
        )
    ),
    "dense.activation": plain(lambda x: tuple(dense.activation(x)), [(0.3,)], [(0.0,), (1.0,)]),
    "dense.width_kept": of_site(lambda at, m: dense.width_kept(at, 0.3)),
    "experts.moves": of_site(lambda at, m: experts.moves(at)),
    "mamba.handed_over": of_site(lambda at, m: mamba.handed_over(at, 3e5)),
    "counts.parameters": of_model(counts.parameters),
    "counts.active_parameters": of_model(counts.active_parameters),
    "counts.model_flops_per_token": of_model(
        lambda m: [counts.model_flops_per_token(m, name) for name in counts.CONVENTIONS]
    ),
    "counts.product_flops_per_token": of_model(counts.product_flops_per_token),
    "traffic.cast_bytes": of_work(
        lambda m, p: traffic.cast_bytes(tables.layer(m, p).products, m, p)
    ),
    "counts.attention_flops": of_work(counts.attention_flops),
    "compute.narrowed": of_work(lambda m, p: compute.narrowed(p)),
    "compute.older_kernels": of_work(lambda m, p: tuple(compute.older_kernels(p))),
    "compute.off_vectors": of_work(lambda m, p: compute.off_vectors(p)),
    "traffic.adapter_bytes": of_work(lambda m, p: tuple(traffic.adapter_bytes(m, p))),
    "traffic.loss_bytes": of_work(traffic.loss_bytes),
    "launching.dequantizations": of_work(
        lambda m, p: launching.dequantizations(tables.layer(m, p), p)
    ),
    "launching.launches": of_work(
        lambda m, p: launching.launches(tables.layer(m, p), p, m.trainable)
    ),
    "launching.passes": of_work(lambda m, p: launching.passes(p, m.trainable)),
    "pipeline.meetings": of_work(lambda m, p: pipeline.meetings(p, p.layout.pp / 1.7)),
    "counts.stage_layers": of_work(counts.stage_layers),
    "counts.residents": of_work(counts.residents),
    "counts.activation_bytes": of_work(counts.activation_bytes),
    "counts.between_layers": of_work(counts.between_layers),
    "placement.place": Term(
        lambda x, p: placement.place(x["plan"], x["size"]),
        [
            {"plan": plan, "size": size}
            for plan, size in product(at.PLANS, (np.array([7.3, np.inf]), np.array([3.4, np.inf])))
        ],
        [
            {"plan": plan, "size": np.array([size, np.inf])}
            for plan, size in product(at.EDGE_PLANS, (1.0, 8.0, 1e9))
        ],
    ),
    "levels.inner_outer": plain(
        lambda a, b: levels.inner_outer(a, b, 3), [(0.3, 0.7)], [(0.0, 0.0)]
    ),
    "levels.fabric": Term(
        lambda x, p: levels.fabric(x["network"], x["c"]),
        [{"network": at.NETWORK, "c": at.COEFFICIENTS}],
        [{"network": at.FABRIC, "c": at.IDEAL}],
    ),
    "levels.torus_of": plain(levels.torus_of, [(1.3,), (2.6,)], [(1.0,), (3.0,)]),
    "levels.inverse_of": plain(levels.inverse_of, [(1.3,), (2.6,)], [(1.0,), (3.0,)]),
    "levels.levels_of": message(
        lambda nbytes, group, net: [
            getattr(levels.levels_of(group, net), name)
            for name, found in vars(levels.Levels).items()
            if isinstance(found, cached_property)
        ]
    ),
    "collectives.gather_line": message(
        lambda nbytes, group, net: collectives.gather_line(group, net)
    ),
    "collectives.gather_time": message(collectives.gather_time),
    "collectives.all_reduce_time": message(collectives.all_reduce_time),
    "collectives.all_to_all_time": message(
        lambda nbytes, group, net: [
            collectives.all_to_all_time(
                nbytes, group, net, 2.3 + 0.0 * nbytes, merged + 0.0 * nbytes
            )
            for merged in (0.0, 0.4)
        ]
    ),
    "collectives.point_to_point_time": message(collectives.point_to_point_time),
    "compute.matmul_time": Term(_matmul, CHIPPED, EDGE_CHIPPED, soft=True),
    "compute.attention_time": Term(
        lambda x, p: compute.attention_time(x["n"], 0.004 * x["n"], x["m"], x["chip"], x["c"], p),
        ON_CHIP,
        EDGE_ON_CHIP,
        soft=True,
    ),
    "compute.attention_passes": Term(
        lambda x, p: list(
            compute.attention_passes(x["n"], 0.004 * x["n"], x["m"], 0.7, x["chip"], x["c"], p)
        ),
        ON_CHIP,
        EDGE_ON_CHIP,
        soft=True,
    ),
    "compute.streaming_time": Term(
        lambda x, p: compute.streaming_time(x["n"], x["chip"], x["c"]), ON_CHIP, EDGE_ON_CHIP
    ),
    "compute.launch_time": Term(
        lambda x, p: compute.launch_time(
            x["n"], compute.starts(x["m"], 0.8 * x["m"], 0.3 * x["m"], x["chip"], x["c"]), p
        ),
        ON_CHIP[1:],
        EDGE_ON_CHIP,
        soft=True,
    ),
    "compute.starts": Term(
        lambda x, p: list(compute.starts(x["m"], 0.8 * x["m"], 0.3 * x["m"], x["chip"], x["c"])),
        ON_CHIP[1:],
        EDGE_ON_CHIP,
    ),
    "compute.hidden_head": Term(
        lambda x, p: compute.hidden_head(
            0.7 * x["n"],
            3.0,
            x["n"],
            compute.starts(x["m"], 0.32 * x["m"], 0.0, x["chip"], x["c"]),
            p,
        ),
        ON_CHIP[1:],
        EDGE_ON_CHIP,
        soft=True,
    ),
    "host.copy_time": Term(lambda x, p: host.copy_time(x["n"], x["chip"]), ON_CHIP, EDGE_ON_CHIP),
    "host.update_time": Term(
        lambda x, p: host.update_time(1e9 * x["plan"].layout.tp, x["plan"], x["chip"]),
        CHIPPED,
        EDGE_CHIPPED,
    ),
    "hosted.moved": of_work(lambda m, p: tuple(hosted.moved(m, p, counts.residents(m, p)))),
    "hosted.waiting": Term(
        lambda x, p: hosted.waiting(
            x["model"],
            x["plan"],
            counts.residents(x["model"], x["plan"]),
            part.Passes(0.011 * x["plan"].layout.tp, 0.023 * x["plan"].layout.pp),
            x["chip"],
        ),
        CHIPPED,
        EDGE_CHIPPED,
    ),
    "compute.optimizer_time": Term(
        lambda x, p: compute.optimizer_time(x["n"], x["m"], x["chip"], x["c"]),
        ON_CHIP,
        EDGE_ON_CHIP,
    ),
    "memory.zero_share": plain(
        lambda z: [memory.zero_share(z, k) for k in (1.0, 2.0, 3.0)],
        [(0.4,), (1.5,), (2.6,)],
        [(0.0,), (3.0,)],
    ),
    "memory.sharded": of_work(lambda m, p: memory.sharded(counts.residents(m, p), p)),
    "memory.held": of_work(
        lambda m, p: [memory.held(counts.residents(m, p), p, k) for k in (1.0, 2.0, 3.0)]
    ),
    "memory.stored_weights": of_work(lambda m, p: memory.stored_weights(counts.residents(m, p), p)),
    "memory.device_weights": of_work(lambda m, p: memory.device_weights(counts.residents(m, p), p)),
    "memory.gathered_weights": of_work(
        lambda m, p: memory.gathered_weights(
            counts.residents(m, p), p.having(whole_ends=0.4), counts.stage_layers(m, p)
        )
    ),
    "memory.layer_activation_bytes": of_work(memory.layer_activation_bytes),
    "memory.layer_input_bytes": of_work(memory.layer_input_bytes),
    "memory.kept_result_bytes": of_work(memory.kept_result_bytes),
    "memory.on_device": of_work(
        lambda m, p: [memory.on_device(m.n_layers * x, p.having(offload=0.6)) for x in (0.5, 3.0)]
    ),
    "memory.moments": of_work(
        lambda m, p: (
            memory.moments(m, p, p.layout.pp),
            memory.moments(m, p, p.layout.pp, 1.0, FOOTPRINT),
        )
    ),
    "memory.fullest": of_work(
        lambda m, p: [
            memory.fullest(memory.moments(m, having, p.layout.pp)).total
            for having in (p, p.having(update_bytes=900.0))
        ]
    ),
    "memory.boundary_bytes": of_work(lambda m, p: memory.boundary_bytes(m, p, p.layout.pp + 0.5)),
    "memory.gathered_bytes": of_work(lambda m, p: memory.gathered_bytes(m, p, p.layout.pp + 1.5)),
    "memory.out_of_memory_probability": plain(
        memory.out_of_memory_probability, [(7e10, 8e10, 0.2), (9e10, 8e10, 0.1)], [(1e9, 8e10, 0.2)]
    ),
    "overlap.exposed_time": plain(overlap.exposed_time, WINDOWS, EDGE_WINDOWS, soft=True),
    "overlap.lengthened": plain(
        overlap.lengthened, [(0.8, 0.3), (0.2, 1.1)], [(0.0, 0.5), (1.0, 0.0), (1.0, 2.0)]
    ),
    "overlap.straggler_share": plain(
        overlap.straggler_share,
        [(3.3, 0.01), (4000.0, 0.02)],
        [(1.0, 0.01), (1.0, 0.0), (2.0, 0.0)],
    ),
    "pipeline.gpipe_bubble": plain(pipeline.gpipe_bubble, PIPES, EDGE_PIPES),
    "pipeline.interleaved_bubble": plain(pipeline.interleaved_bubble, PIPES, EDGE_PIPES),
    "pipeline.step_window": plain(pipeline.step_window, PIPES, EDGE_PIPES),
    "pipeline.zero_bubble": plain(pipeline.zero_bubble, PIPES, EDGE_PIPES),
    "pipeline.dualpipe_bubble": plain(pipeline.dualpipe_bubble, PIPES, EDGE_PIPES),
    "pipeline.dualpipev_bubble": plain(pipeline.dualpipev_bubble, PIPES, EDGE_PIPES),
    **{
        f"pipeline.{one.__name__}": of_work(lambda m, p, one=one: one(p))
        for one in (
            pipeline.idle_slots,
            pipeline.in_flight,
            pipeline.in_flight_last,
            pipeline.hiding_window,
        )
    },
    **{
        f"pipeline.SCHEDULES.{name}": plain(
            lambda pp, m, v, s=s: (s.bubble(pp, m, v), s.in_flight(pp, m, v)), PIPES, EDGE_PIPES
        )
        for name, s in pipeline.SCHEDULES.items()
    },
    "interference.contention": plain(
        lambda a, n, link, hbm, p: interference.contention(a, n, link, hbm, sharpness=p),
        [(0.7, 132.0, 3e11, 3e12), (0.3, 108.0, 1e11, 2e12)],
        [(1.0, 132.0, 0.0, 3e12), (0.0, 125.0, 0.16e12, 3.125e12)],
        soft=True,
    ),
    "power.draw": Term(
        lambda x, p: power.draw(
            x["chip"], power.Activities(*x["shares"]), x["demand"], x["waiting"]
        ),
        [{"chip": at.CHIP, "shares": s, "demand": 1.5, "waiting": 0.5} for s in BUSY],
        [{"chip": at.CHIP, "shares": s, "demand": 1.5, "waiting": 0.5} for s in BUSY_EDGES],
    ),
    "power.watts": Term(
        lambda x, p: power.watts(x["chip"], power.Activities(*x["shares"]), x["demand"]),
        [{"chip": at.CHIP, "shares": s, "demand": 1.5} for s in BUSY],
        [{"chip": at.CHIP, "shares": s, "demand": 1.5} for s in BUSY_EDGES],
    ),
    "power.host_watts": Term(
        lambda x, p: power.host_watts(x["chip"], x["a"]), [{"chip": at.CHIP, "a": 0.7}]
    ),
    "step.memory_use": of_work(lambda m, p: (lambda x: (x, x.total))(step.memory_use(m, p))),
    "step.memory_moments": of_work(lambda m, p: step.memory_moments(m, p, FOOTPRINT)),
    "layer.attention_passes": Term(
        lambda x, p: tuple(
            layer.attention_passes(
                tables.layer(x["model"], x["plan"]).cores, x["plan"], x["chip"], x["c"], p
            )
        ),
        CHIPPED,
        EDGE_CHIPPED,
        soft=True,
    ),
    "layer.passes": of_work(layer.passes),
    "layer.layer_work": Term(
        lambda x, p: (
            layer.layer_work(
                x["model"],
                x["plan"],
                counts.residents(x["model"], x["plan"]),
                x["system"].chip,
                x["c"],
                p,
            )
            .at_clock(1.0 + 0.01 * x["plan"].layout.tp)
            .replace(stacked=None)
        ),
        STEPS,
        EDGE_STEPS,
        soft=True,
        one_unit=True,
    ),
    "layer.starts": Term(
        lambda x, p: list(
            layer.starts(x["model"], x["plan"], x["plan"].layout.pp / 1.7, x["system"].chip, x["c"])
        ),
        STEPS,
        EDGE_STEPS,
    ),
    "step.step_time": Term(
        lambda x, p: step.step_time(x["system"], x["model"], x["plan"], x["c"], sharpness=p),
        STEPS,
        EDGE_STEPS,
        soft=True,
        one_unit=True,
    ),
}

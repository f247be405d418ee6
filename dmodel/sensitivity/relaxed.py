"""The best plan with real-valued degrees, micro-batch and recomputation, near a whole-numbered one:
the program that is differentiated.

Unknowns are logarithms of dp, tp, cp, pp and the micro-batch (and of the chunks per stage where
there are several), and the share of layers recomputed. ZeRO stage, experts' degree and switches
stay; a sharding group keeps filling dp, or as many devices as it does. The step time has kinks
where a group just fills a domain of the network or has two members: its pieces are smooth, the
program is solved on one piece at a time, and neighbouring pieces are tried until none is better.
Stages are alike: a layout is that of some degrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from dmodel.errors import InputError
from dmodel.sensitivity.case import Inputs, Point, inputs
from dmodel.smooth import SHARPNESS

DEGREES = ("dp", "tp", "cp", "pp")

MARGIN = 1e-6
"""Distance kept from kinks and lower ends, in the logarithm, so that slopes are those of one piece.
"""

WIDEST = float(np.log(1e9))
"""No degree is larger, in the logarithm."""


class Form(NamedTuple):
    """A linear form of unknowns and logarithms of inputs: `slope · u + Σ weight · ln x + constant`.

    name: for people; inputs: place of an input → weight, place −1 is the device count.
    """

    name: str
    slope: np.ndarray
    inputs: dict[int, float]
    constant: float = 0.0

    def at(self, u: np.ndarray, logs: np.ndarray) -> float:
        """Its value; logs: of the inputs, the device count last."""
        return float(
            self.slope @ u + sum(w * logs[i] for i, w in self.inputs.items()) + self.constant
        )


class Program(NamedTuple):
    """The program of one case.

    Attributes:
      known: inputs by name. free: fields of the plan that are unknown. places: of these among the
        inputs.
      shard: place of the sharding group. follows: slope of ln shard by the unknowns, or None where
        nothing is sharded.
      limits: forms that are ≤ 0. kinks: forms whose zeros are kinks. total: form that is 0, the
        devices. sharpness: of the step's maxima.
      room: share of a device's memory that a plan may need [1].
    """

    known: Inputs
    free: tuple[str, ...]
    places: tuple[int, ...]
    shard: int
    follows: np.ndarray | None
    limits: tuple[Form, ...]
    kinks: tuple[Form, ...]
    total: Form
    sharpness: float
    room: float = 1.0

    @property
    def logarithmic(self) -> np.ndarray:
        """Which unknowns are logarithms."""
        return np.array([name != "recompute_layers" for name in self.free])

    def start(self) -> np.ndarray:
        """The unknowns of the case's own plan."""
        x = self.known.values[list(self.places)]
        return np.where(self.logarithmic, np.log(np.maximum(x, 1e-9)), x)

    def logs(self, x: np.ndarray, n_devices: float) -> np.ndarray:
        """Logarithms of the inputs and, last, of the device count."""
        return np.append(np.log(np.where((x > 0.0) & np.isfinite(x), x, 1.0)), np.log(n_devices))

    def cases(self, u: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Inputs `[n, case]` with the unknowns `[unknown, case]` in the place of the plan's."""
        x = np.repeat(x[:, None], u.shape[1], 1)
        x[list(self.places)] = np.where(self.logarithmic[:, None], np.exp(u), u)
        if self.follows is not None:
            x[self.shard] *= np.exp(self.follows @ (u - self.start()[:, None]))
        return x

    def by_unknowns(self, x: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """Slopes of a logarithm by the unknowns `[unknown, case]`, from those by all inputs."""
        places = list(self.places)
        own = slopes[places] * np.where(self.logarithmic[:, None], x[places], 1.0)
        return (
            own
            if self.follows is None
            else own + self.follows[:, None] * (slopes[self.shard] * x[self.shard])[None]
        )


def n_devices(known: Inputs) -> float:
    """Devices of the case: the product of its degrees."""
    return float(np.prod([known[f"plan.{name}"] for name in DEGREES]))


def fills_domain(p: Program) -> bool:
    """Whether the devices are just those of a domain of some level, so that their number stands on
    a kink."""
    sizes = [
        p.known.values[i] for i, name in enumerate(p.known.names) if name.startswith("network.size")
    ]
    return any(
        abs(edge - n_devices(p.known)) < 0.5 for edge in np.cumprod(sizes) if np.isfinite(edge)
    )


def program(
    case: Point, *, sharpness: float = SHARPNESS, level_names: Sequence[str] | None = None
) -> Program:
    """State the program of a case.

    Raises:
      InputError: one device, which leaves nothing to choose.
    """
    known = inputs(case.replace(plan=case.plan.alike()), level_names)
    if n_devices(known) <= 1.0:
        raise InputError(
            "re-optimised sensitivities: expected at least 2 devices; one leaves no degree to "
            "choose"
        )
    if known["plan.tp"] == 1.0:
        # sequence parallelism comes with tensor parallelism, which the program may choose
        values = known.values.copy()
        values[known.index("plan.sp")] = 1.0
        known = known._replace(values=values)
    chunks = ("interleave",) if known["plan.interleave"] > 1.0 else ()
    free: tuple[str, ...] = (*DEGREES, "micro_batch", *chunks, "recompute_layers")
    unit: dict[str, np.ndarray] = dict(zip(free, np.eye(len(free)), strict=True))
    full = known["plan.shard"] == known["plan.dp"]
    follows = unit["dp"] if full else -unit["tp"] - unit["cp"]
    return Program(
        known=known,
        free=free,
        places=tuple(known.index(f"plan.{name}") for name in free),
        shard=known.index("plan.shard"),
        follows=follows if known["plan.zero"] > 0.0 else None,
        limits=_limits(known, unit),
        kinks=_kinks(known, unit, case.plan.layout.placement),
        total=Form("devices", sum((unit[d] for d in DEGREES), np.zeros(len(free))), {-1: -1.0}),
        sharpness=sharpness,
    )


def _limits(known: Inputs, unit: dict[str, np.ndarray]) -> tuple[Form, ...]:
    """What degrees and shares may not exceed, each ≤ 0."""
    chunked = unit["pp"] + unit.get("interleave", 0.0)
    batch = unit["dp"] + unit["micro_batch"]
    heads = [n for n in known.names if n.startswith("model.") and n.endswith(".n_heads")]
    above = [
        *(Form("tp = heads", unit["tp"], {known.index(n): -1.0}) for n in heads),
        Form("cp = sequence", unit["cp"], {known.index("model.seq_len"): -1.0}),
        Form("stages = layers", chunked, {known.index("model.n_layers"): -1.0}),
        Form("one micro-batch", batch, {known.index("plan.global_batch"): -1.0}),
        Form("all recomputed", unit["recompute_layers"], {}, -1.0),
    ]
    if known["plan.ep"] * known["plan.etp"] > 1.0:
        experts = {known.index("plan.ep"): 1.0, known.index("plan.etp"): 1.0}
        above.append(
            Form("dp · tp · cp = ep · etp", -unit["dp"] - unit["tp"] - unit["cp"], experts)
        )
    if known["plan.etp"] > 1.0:
        above.append(Form("tp = etp", -unit["tp"], {known.index("plan.etp"): 1.0}))
    if "interleave" in unit:
        above.append(
            Form(
                "micro-batches = stages",
                batch + unit["pp"],
                {known.index("plan.global_batch"): -1.0},
            )
        )
    below = [
        Form(f"{name} = 1", -row, {}) for name, row in unit.items() if name != "recompute_layers"
    ]
    return (*above, *below, Form("nothing recomputed", -unit["recompute_layers"], {}))


PAIR = float(np.log(2.0))
"""Logarithm of a group of two."""


def _kinks(
    known: Inputs, unit: dict[str, np.ndarray], placement: Sequence[str]
) -> tuple[Form, ...]:
    """Where a group ends on the edge of a domain, has two members, or two on one side of an edge;
    and as many micro-batches as stages."""
    order = [name for name in placement if name in DEGREES]
    found = [Form(f"{name} = 2", unit[name], {}, -PAIR) for name in order]
    if "interleave" not in unit:
        needed = unit["dp"] + unit["micro_batch"] + unit["pp"]
        found.append(
            Form("micro-batches = stages", needed, {known.index("plan.global_batch"): -1.0})
        )
    edge: dict[int, float] = {}
    for i, label in _bounded_levels(known):
        edge = edge | {i: -1.0}
        found += _at_an_edge(order, unit, label, edge)
    return tuple(found)


def _bounded_levels(known: Inputs) -> Iterator[tuple[int, str]]:
    """Place and name of the size of every level that has an end."""
    for i, name in enumerate(known.names):
        if name.startswith("network.size") and np.isfinite(known.values[i]):
            yield i, name[len("network.size") :].strip("[]")


def _at_an_edge(
    order: Sequence[str], unit: dict[str, np.ndarray], label: str, edge: dict[int, float]
) -> Iterator[Form]:
    """Where a group ends on the edge of a domain, or has two members on one side of it."""
    ends = list(accumulate((unit[name] for name in order), initial=np.zeros_like(unit["dp"])))
    for group, end in zip(order[:-1], ends[1:-1], strict=True):
        yield Form(f"{group} ends with a domain of {label}", end, edge)
        yield Form(f"{group} joins two domains of {label}", end, edge, -PAIR)
        yield Form(f"{group} leaves two ranks in a domain of {label}", end, edge, PAIR)

"""What the studies of hardware scaling assume alike: cases and their answers.

Published figures are those of Fernandez et al., "Hardware Scaling Trends and Diminishing Returns in
Large-Scale Distributed Training" (arXiv 2411.13055), as others quote them: ratios, no absolute
throughputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from calibration.micro.priors import priors
from dmodel import catalog, profiles, run
from dmodel.breakdown import TERMS
from dmodel.coefficients import NAMES, Coefficients, from_unconstrained, to_unconstrained
from dmodel.cost.power import Draw
from dmodel.question import Question
from dmodel.records import Cluster, Model, Plan, leaf
from dmodel.resolve import Resolved, resolve
from dmodel.step import step_time
from dmodel.sweep import quick_to_compile
from dmodel.types import Array
from dmodel.uncertainty import FREEDOM, covariance, misfit, scatter_of

PROFILE, STACK = "generic", "fsdp"
"""Software and chip of every study: the profile fitted to all published rows, at the offsets of the
chip and of PyTorch's FSDP as a code base: no published row is from the software of the study."""

CHUNK = 256
"""Cases of one call of compiled code [count]: one shape, so that all studies share what is
compiled."""

SEQ_LEN, PER_DEVICE = 4096, 2.0
"""Workload of the published study: sequences of 4,096 tokens, 2 of them per device and step."""

WEAK_SCALES = tuple(float(2**i) for i in range(3, 12))
"""8 to 2,048 devices."""


class Cases(NamedTuple):
    """A batch of cases: leaves `[n]`, of the network `[K, n]`."""

    system: Cluster
    model: Model
    plan: Plan
    coefficients: Coefficients


class Answers(NamedTuple):
    """What the model says of each case, numpy `[n]`.

    Attributes:
      terms: seconds of the step by cause. draw: watts of a device by cause. The others: as in
        `dmodel.run.Outputs`.
    """

    terms: dict[str, np.ndarray]
    draw: dict[str, np.ndarray]
    step_time_s: np.ndarray
    tokens_per_s: np.ndarray
    tokens_per_s_per_device: np.ndarray
    mfu: np.ndarray
    exposed_share: np.ndarray
    headroom_bytes: np.ndarray
    device_watts: np.ndarray
    joules_per_token: np.ndarray
    dollars_per_token: np.ndarray

    def take(self, rows: Any) -> Answers:
        """The answers of some cases."""
        return jax.tree.map(lambda x: x[rows], self)

    @property
    def exposed_s(self) -> np.ndarray:
        """Communication that nothing hides [s]."""
        return sum(
            (self.terms[name] for name in GROUPS["exposed communication"]), start=np.zeros(1)
        )

    @property
    def tokens_per_device_joule(self) -> np.ndarray:
        """Of the device alone, without host and cooling [token/J]."""
        return self.tokens_per_s_per_device / self.device_watts


BETWEEN_NODES = ("net_efficiency_outer", "net_latency_outer", "net_contention")
"""Coefficients between nodes, which every study takes from the fit of the published study's own
all-reduce curves."""


@cache
def curves_fit() -> dict[str, float]:
    """What the all-reduce curves over nodes of H100 say of the network between nodes:
    `calibration.micro`'s fit of them.

    A gather's hop is not among what they show: it follows from an all-reduce's by the ratios of
    NCCL's tuning table.
    """
    found, z = priors("H100-80GB"), np.zeros(len(NAMES))
    for name in BETWEEN_NODES:
        z[NAMES.index(name)] = found[name].mean
    values = from_unconstrained(z)
    return {name: float(getattr(values, name)) for name in BETWEEN_NODES}


def coefficients(
    accelerator: str, stack: str = STACK, profile: str = PROFILE, curves: bool = True
) -> Coefficients:
    """Coefficients of a chip and a stack (scalars), between nodes those of the all-reduce curves,
    or the profile's own."""
    found = profiles.load(profile).coefficients_for(accelerator, stack)
    return found.replace(**curves_fit()) if curves else found


RATES = ("attention_rate", "attention_backward_rate")


@lru_cache(maxsize=64)
def _of_kernels(accelerator: str, stack: str) -> Resolved:
    """A job on some devices of a chip, as a stack runs it."""
    offered = catalog.precisions(accelerator)
    precision = "bf16" if "bf16" in offered else offered[0]
    sizes = {"n_accel": 8, "global_batch": 8, "accelerator": accelerator, "stack": stack}
    return resolve(Question({"model": "llama-2-7b", "precision": precision, **sizes}))


def kernels(accelerator: str = "H100-80GB", stack: str = STACK) -> dict[str, float]:
    """What a plan says of the kernels of attention that a stack has on a chip."""
    plan = _of_kernels(accelerator, stack).plan
    return {name: float(leaf(plan, name)) for name in RATES}


def _said_of_kernels(accelerator: str, stack: str = STACK) -> list[str]:
    """The same in words."""
    texts = (each.text for each in _of_kernels(accelerator, stack).assumptions)
    return [text for text in texts if text.startswith("FlashAttention")]


def coefficients_line(*chips: str) -> str:
    """Where the coefficients come from, in words."""
    named = ", ".join(
        f"{name.removeprefix('net_')} {value:.3g}" for name, value in curves_fit().items()
    )
    older = "".join(f"; on {chip} {said}" for chip in chips for said in _said_of_kernels(chip))
    return (
        f"shipped profile {PROFILE}, {', '.join(chips)}, code base {STACK}; between nodes the "
        f"study's all-reduce curves ({named}){older}"
    )


def chip_of(system_name: str) -> str:
    """Name of the accelerator of a system of the catalog."""
    return next(
        entry["chip"] for entry in catalog.entries("systems") if entry["name"] == system_name
    )


def cases(system: Cluster, model: Model, plan: Plan, c: Coefficients) -> Cases:
    """Broadcast all leaves to the length of the longest; the schedule that contains 1F1B, so that
    cases join."""
    plan = plan.having(
        schedule="interleaved" if plan.layout.schedule == "1f1b" else plan.layout.schedule
    )
    n = max(np.size(x) for x in jax.tree.leaves((model, plan, c, system.chip)))
    network = jax.tree.map(
        lambda x: np.broadcast_to(np.reshape(x, (len(x), -1)), (len(x), n)), system.network
    )
    chip, model, plan, c = jax.tree.map(
        lambda x: np.broadcast_to(np.asarray(x, float), (n,)), (system.chip, model, plan, c)
    )
    devices = np.broadcast_to(np.asarray(system.devices, float), (n,))
    return Cases(Cluster(chip=chip, network=network, devices=devices), model, plan, c)


def join(parts: Sequence[Cases]) -> Cases:
    """Several batches as one."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, -1), *parts)


def answers(parts: Mapping[str, Cases]) -> dict[str, Answers]:
    """Answers of several batches by name, evaluated as one."""
    found = answer(join(list(parts.values())))
    ends = np.cumsum([0, *(np.size(part.plan.layout.dp) for part in parts.values())])
    return {
        name: found.take(slice(a, b)) for name, a, b in zip(parts, ends, ends[1:], strict=False)
    }


def answer(batch: Cases) -> Answers:
    """Evaluate every case, a chunk at a time."""
    n = np.shape(batch.plan.layout.dp)[0]
    wanted = np.arange(-(-n // CHUNK) * CHUNK).clip(max=n - 1).reshape(-1, CHUNK)
    found = [
        jax.tree.map(np.asarray, _compiled()(*jax.tree.map(lambda x, i=i: x[..., i], batch)))
        for i in wanted
    ]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *found)


@cache
def _compiled() -> Any:
    return jax.jit(_evaluate, compiler_options=quick_to_compile())


def _evaluate(system: Cluster, model: Model, plan: Plan, c: Coefficients) -> Answers:
    terms = step_time(system, model, plan, c)
    out = run.outputs(system, model, plan, terms, c)
    power, whole = run.device_draw(system, terms, c), 0.0 * terms.total
    rest = {name: getattr(out, name) + whole for name in Answers._fields[2:]}
    draw = {name: getattr(power, name) + whole for name in Draw.__dataclass_fields__}
    return Answers(terms={name: getattr(terms, name) + whole for name in TERMS}, draw=draw, **rest)


def fsdp(devices: Array, per_device: Array = PER_DEVICE, **more: Any) -> Plan:
    """Fully sharded data parallelism over all devices: ZeRO-3, weights gathered again for the
    backward pass (PyTorch's default), one micro-batch, bf16 with 16-bit reduction, flash attention
    in the kernels that it has on H100, no recomputation."""
    dp = np.asarray(devices, float)
    given = {
        "dp": dp,
        "shard": dp,
        "zero": 3.0,
        "micro_batch": per_device,
        "global_batch": per_device * dp,
    }
    return Plan.of(**(given | kernels() | more))


def unhidden(plan: Plan) -> Plan:
    """The plan with nothing hidden: its exposed communication is all communication (under ZeRO-3,
    whose messages are those of layers; what is sent once per step goes in one message then)."""
    zero = np.zeros_like(np.asarray(plan.layout.dp, float))
    return plan.having(**{f"overlap_{kind}": zero for kind in ("tp", "cp", "ep", "dp", "pp")})


def draws(accelerator: str, count: int, seed: int = 0) -> Coefficients:
    """Coefficients of `coefficients(accelerator)` drawn from what is known of them, `[count]`:
    normal in the unconstrained space.

    Covariance: what the fit left open, and the spread of the groups that the profile does not know,
    as the software was never fitted; between nodes that of the curves' fit.
    """
    profile, found = profiles.load(PROFILE), priors("H100-80GB")
    known = covariance(profile, accelerator, STACK)
    sigma = np.diag(profile.standard_errors**2) if known is None else known.copy()
    z = np.asarray(to_unconstrained(coefficients(accelerator)))
    for i in (NAMES.index(name) for name in BETWEEN_NODES):
        sigma[i], sigma[:, i] = 0.0, 0.0
        sigma[i, i] = found[NAMES[i]].sd ** 2
    values, vectors = np.linalg.eigh(sigma)
    normal = np.random.default_rng(seed).standard_normal((len(z), count))
    return jax.tree.map(
        np.asarray,
        from_unconstrained(z[:, None] + vectors * np.sqrt(np.maximum(values, 0.0)) @ normal),
    )


def lacking(scales: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Factors by which what the model lacks may move a curve relative to its smallest scale,
    `[draw, scale]`: one Student-t per draw, its scale that of the discrepancy of an unknown stack
    at a distance of ln(devices) from the smallest scale (`dmodel.uncertainty`)."""
    away = np.log(scales / scales[0])
    scale = misfit(scatter_of(profiles.load(PROFILE), STACK)._replace(noise=0.0), away)
    return np.exp(np.random.default_rng(seed).standard_t(FREEDOM, count)[:, None] * scale)


GROUPS = {
    "compute": (
        "matmul",
        "attention",
        "elementwise",
        "recompute",
        "head",
        "optimizer",
        "launch",
        "overhead",
        "offload",
    ),
    "slowed by communication": ("contention",),
    "exposed communication": (
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "fsdp",
        "data_parallel",
        "pipeline_transfer",
    ),
    "bubble": ("bubble",),
    "stragglers": ("straggler",),
}
"""Terms of the step as figures show them."""


def grouped(found: Answers) -> dict[str, np.ndarray]:
    """Seconds by group of terms; together they are the step."""
    return {
        group: sum((found.terms[name] for name in names), start=np.zeros(1))
        for group, names in GROUPS.items()
    }


def shares(found: Answers) -> dict[str, np.ndarray]:
    """Share of every term that is not 0 in the step [1]."""
    return {
        name: seconds / found.step_time_s
        for name, seconds in found.terms.items()
        if np.any(seconds)
    }


def catalog_line(system_name: str) -> str:
    """A system's network in words: members, GB/s per device and direction, latency of a hop, level
    by level."""
    net = catalog.system(system_name, catalog.precisions(chip_of(system_name))[0]).network
    levels = zip(
        *(np.asarray(x).tolist() for x in (net.size, net.bytes_per_s, net.latency_s)), strict=True
    )
    text = [
        f"{'unbounded' if np.isinf(s) else f'{s:.0f}'} × {b / 1e9:.3g} GB/s, {1e6 * a:.3g} µs"
        for s, b, a in levels
    ]
    return f"{system_name}: " + "; ".join(text)


def assumed(own: Mapping[str, str], system_name: str, chip: str) -> dict[str, str]:
    """What a study assumes, its network and its coefficients with it, in words."""
    return {
        **own,
        "network": catalog_line(system_name),
        "coefficients": coefficients_line(chip),
    }

"""The list of protocols with their goals, and the stand-ins where the published rows lack what a
goal names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.traces import Cases
from dmodel.errors import InputError
from experiments.divisions import (
    FAMILIES,
    MAXTEXT,
    NEMO,
    VTRAIN,
    Goal,
    Protocol,
    Rows,
    apart,
    both,
    chip,
    dense,
    devices,
    everybody,
    few,
    folds,
    half,
    half_of_groups,
    nobody,
    shipped,
    sources,
    sparse,
    unflagged,
    width,
    with_peak,
    without,
)

SIZES = (8, 12, 30)
"""Rows of a few-shot fit."""

ULTRASCALE = "ultrascale-playbook"
FEW_GOALS = {
    "vtrain-single": Goal(4.0, 6.0),
    "vtrain-multi": Goal(3.5, 8.0, 1.0, 0.95),
    "llm-foundry": Goal(2.5, 4.0),
    "nemo-launcher": Goal(4.0, 6.0),
    "b200": Goal(4.0, 6.0),
    "b200-known-family": Goal(4.0, 6.0),
    "ultrascale": Goal(9.0, 14.0, 1.0, 0.95),
    "ultrascale-flagged": Goal(25.0),
}
KNOWN = {
    name: name
    for name in ("vtrain-single", "vtrain-multi", "llm-foundry", "nemo-launcher", "megatron-bridge")
}
KNOWN |= {"maxtext": "maxtext-readme"}
CHOICE = Goal(regret=1.0, order=0.95)
OTHERS = Goal(4.0, 6.0)
OTHER_STACK = Goal(15.0, regret=1.0, order=0.95)


def catalog(cases: Cases) -> dict[str, Protocol]:
    """Every protocol whose target has rows, by name."""
    blocks = (
        _few_shot(cases),
        _known(),
        _cross_validation(),
        _no_rows(),
        _extrapolation(),
        _chips(),
        _choosing(),
        _memory(),
    )
    found = {name: protocol for block in blocks for name, protocol in block.items()}
    return {
        name: p
        for name, p in found.items()
        if any(d.judged.any() for d in p.divide(cases, p.target(cases), 0))
    }


def few_shot_targets(
    known: Mapping[str, Protocol], asked: Sequence[str] | None, usual: Sequence[str], size: int = 12
) -> list[str]:
    """Targets of few-shot fits that were asked for, or those of the usual ones that have rows.

    Raises:
      InputError: one that was asked for has no rows.
    """
    few = f"few-shot {size} "
    unknown = [name for name in asked or () if few + name not in known]
    if unknown:
        there = [name.removeprefix(few) for name in known if name.startswith(few)]
        raise InputError(
            f"--targets: no rows of {', '.join(unknown)}; choose from {', '.join(there)}"
        )
    return list(asked or (name for name in usual if few + name in known))


def _targets(cases: Cases) -> dict[str, tuple[Rows, Rows]]:
    """Few-shot targets: rows, and what the base has not seen."""
    bridge = both(sources("megatron-bridge"), chip("B200"))
    ultra = sources(ULTRASCALE)
    known = {
        "vtrain-single": (sources("vtrain-single"), sources(*VTRAIN)),
        "vtrain-multi": (sources("vtrain-multi"), sources(*VTRAIN)),
        "llm-foundry": (sources("llm-foundry"), sources("llm-foundry")),
        "nemo-launcher": (sources("nemo-launcher"), sources(*NEMO)),
        "b200": (bridge, sources(*NEMO)),
        "b200-known-family": (bridge, bridge),
        "ultrascale": (both(ultra, unflagged), nobody),
        "ultrascale-flagged": (ultra, nobody),
        "megatron-bridge": (sources("megatron-bridge"), sources(*NEMO)),
        "maxtext": (sources("maxtext-readme"), sources(*MAXTEXT)),
    }
    more = sorted(set(cases.labels.source[~shipped(cases)].tolist()) - {ULTRASCALE})
    return known | {
        name: (both(sources(name), without(shipped)), sources(*_kin(name))) for name in more
    }


def _kin(name: str) -> tuple[str, ...]:
    """Sources of the family of a source."""
    return next((family for family in FAMILIES if name in family), (name,))


def _few_shot(cases: Cases) -> dict[str, Protocol]:
    found = {}
    for name, (target, hidden) in _targets(cases).items():
        stacks = np.unique(cases.labels.stack[target(cases)]).tolist()
        parts = {s: (_stack(s), OTHERS) for s in stacks} if len(stacks) > 1 else {}
        for size in SIZES:
            goal = (
                FEW_GOALS.get(
                    name, OTHERS if name not in ("megatron-bridge", "maxtext") else Goal()
                )
                if size == 12
                else Goal()
            )
            apart_by = parts if size == 12 else {}
            found[f"few-shot {size} {name}"] = Protocol(
                target, hidden, few(size, name == "vtrain-single"), goal, apart_by
            )
    return found


def _known() -> dict[str, Protocol]:
    """12 rows of a stack that the base knows by half of its groups: what someone meets who runs
    software of the published table."""
    found = {}
    for name, source in KNOWN.items():
        target = both(sources(source), half_of_groups)
        goal = FEW_GOALS.get(name, OTHERS)
        found[f"few-shot 12 known {name}"] = Protocol(
            target, half_of_groups, few(12, name == "vtrain-single"), goal
        )
    return found


def _stack(name: str) -> Rows:
    return lambda cases: cases.labels.stack == name


def _cross_validation() -> dict[str, Protocol]:
    mixtures = Goal(7.0, 12.0)
    bridge = {
        "dense": (dense, Goal(4.0, 6.0)),
        "MoE": (sparse, mixtures),
        "MoE, unflagged": (both(sparse, unflagged), mixtures),
    }
    return {
        "cross-validation megatron-bridge": Protocol(
            sources("megatron-bridge"), sources(*NEMO), folds(), parts=bridge
        ),
        "cross-validation maxtext": Protocol(
            sources("maxtext-readme"), sources(*MAXTEXT), folds(), Goal(2.5, 3.5)
        ),
    }


def _no_rows() -> dict[str, Protocol]:
    """The base alone: without the source (its family stays), and without the family."""
    none = apart(nobody, everybody)
    kin = {name: family for family in FAMILIES for name in family}
    alike = (
        "nemo-launcher",
        "dgxc-nemo",
        "megatron-lm-llama",
        "megatron-sc21-t1",
        "megatron-sc21-t2",
        "maxtext-custom",
    )
    nvidia = ("nemo-launcher", "dgxc-nemo", "megatron-bridge")
    other = (
        "llm-foundry",
        *nvidia,
        "vtrain-single",
        "vtrain-multi",
        "megatron-sc21-t1",
        "jax-toolbox-pax",
    )
    same = {
        f"no rows, same family: {s}": Protocol(
            sources(s), sources(s), none, Goal(4.0), random=False, family=True
        )
        for s in alike
    }
    pure = both(sources("llm-foundry"), _stack("llm-foundry/pure"))
    same["no rows, same family: llm-foundry/pure"] = Protocol(
        pure, pure, none, Goal(4.0), random=False, family=True
    )
    apart_from = {
        f"no rows, other stack: {s}": Protocol(
            sources(s), sources(*kin[s]), none, OTHER_STACK, random=False
        )
        for s in other
    }
    ultra = {
        "no rows, other stack: ultrascale": Protocol(
            both(sources(ULTRASCALE), unflagged), nobody, none, OTHER_STACK, random=False
        )
    }
    return same | apart_from | ultra


def _extrapolation() -> dict[str, Protocol]:
    """Fit the small or narrow rows of a stack, judge the large or wide ones."""

    def of(target: Rows, hidden: Rows, fitted: Rows, judged: Rows, *goal: float) -> Protocol:
        return Protocol(target, hidden, apart(fitted, judged), Goal(*goal), random=False)

    foundry, multi, single = (
        sources("llm-foundry"),
        sources("vtrain-multi"),
        sources("vtrain-single"),
    )
    ultra = both(
        sources(ULTRASCALE), unflagged, lambda cases: np.asarray(cases.plan.layout.pp) == 1.0
    )
    dgxc, vtrain, inf = sources("dgxc-nemo"), sources(*VTRAIN), np.inf
    return {
        "scale llm-foundry ≤128→≥256": of(
            foundry, foundry, devices(1, 128), devices(256, inf), 3.0, 4.0
        ),
        "scale llm-foundry ≤16→≥64": of(
            foundry, foundry, devices(1, 16), devices(64, inf), 3.0, 4.0
        ),
        "scale vtrain-multi ≤256→512": of(
            multi, vtrain, devices(1, 256), devices(512, inf), 6.0, 8.0
        ),
        "scale vtrain both ≤256→512": of(
            vtrain, vtrain, devices(1, 256), devices(512, inf), 6.0, 8.0
        ),
        "scale dgxc-nemo ≤128→≥1024": of(dgxc, sources(*NEMO), devices(1, 128), devices(1024, inf)),
        "scale ultrascale pp1 ≤128→256": of(
            ultra, nobody, devices(1, 128), devices(256, inf), 8.0, 12.0
        ),
        "scale ultrascale pp1 ≤32→128": of(
            ultra, nobody, devices(1, 32), devices(128, inf), 8.0, 12.0
        ),
        "size vtrain-single 1024→2048": of(
            single, vtrain, width(0, 1024), width(2048, inf), 12.0, 14.0
        ),
        "size vtrain-multi ≤8192→12288": of(
            multi, vtrain, width(0, 8192), width(12288, inf), 6.0, 7.0
        ),
    }


def _chips() -> dict[str, Protocol]:
    """A stack's rows on all chips but one are fitted, those on that one judged: other stacks may
    have run on it."""
    found = {}
    for source, chips in (
        ("llm-foundry", ("H100-80GB",)),
        ("megatron-bridge", ("H100-80GB", "B200", "B300", "GB200", "GB300")),
    ):
        family = next(f for f in FAMILIES if source in f)
        for name in chips:
            divide = apart(without(chip(name)), chip(name))
            found[f"chips {source}→{name}"] = Protocol(
                sources(source), sources(*family), divide, random=False
            )
    return found


def _choosing() -> dict[str, Protocol]:
    """Which of the measured plans the model would take when it knows all rows; what it takes
    knowing none or few stands with those."""
    all_rows = apart(everybody, everybody)
    return {
        "fitted vtrain-multi": Protocol(
            sources("vtrain-multi"), sources(*VTRAIN), all_rows, CHOICE, random=False
        ),
        "fitted ultrascale": Protocol(
            both(sources(ULTRASCALE), unflagged), nobody, all_rows, CHOICE, random=False
        ),
    }


def _memory() -> dict[str, Protocol]:
    """Peaks of memory, of all rows that have one."""
    found = {
        f"memory {size}": Protocol(
            with_peak, nobody, few(size), Goal(6.0) if size == 12 else Goal(), memory=True
        )
        for size in SIZES
    }
    return {**found, "memory half": Protocol(with_peak, nobody, half, Goal(6.0), memory=True)}

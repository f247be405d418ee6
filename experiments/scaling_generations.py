"""The same run on V100 to GB200 (finding 4).

Hardware generations: the same FSDP run on V100, A100, H100, B200 and GB200; compute grows faster
than the network (finding 4).

Assumed in advance: Llama-2 7B, sequences of 4,096 tokens, 2 per device, 256 devices, ZeRO-3 over
all with weights gathered again, one micro-batch, 16 bits (fp16 on V100), flash attention, no
recomputation, the catalog's DGX class network of each chip (GB200: domains of 72). Coefficients of
the shipped generic profile for each chip and FSDP (V100 is in no fit and has those of a chip never
seen); the network between nodes as the study's all-reduce curves on H100 have it, in shares of each
fabric's bandwidth and in hop latencies.
Model FLOPs by 6N + 12Lhs. `python -m experiments.scaling_generations [--quick] [--json] [--out
DIR]`
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dmodel import catalog
from dmodel.counts import CONVENTIONS, model_flops_per_token
from dmodel.report import style
from experiments import scaling as shared
from experiments import scaling_compared as compared
from experiments import scaling_figures as figures
from experiments.scaling import Answers, Cases, coefficients, fsdp
from experiments.study import COLORS, options
from experiments.study import run as run_study

MODEL, DEVICES = "llama-2-7b", 256.0
SYSTEMS = {
    "V100": "V100-DGX",
    "A100": "A100-DGX",
    "H100": "H100-DGX",
    "B200": "B200-DGX",
    "GB200": "GB200-NVL72",
}
PUBLISHED = {"A100": 59.67, "H100": 40.77}
"""Model FLOP utilization [%]."""

ASSUMPTIONS = {
    "workload": (
        "Llama-2 7B, 2 sequences of 4,096 tokens per device in one micro-batch, 256 devices"
    ),
    "sharding": (
        "ZeRO-3 over all devices, weights gathered again for the backward pass, bf16 (V100: "
        "fp16), flash attention"
    ),
    "utilization": "model FLOPs by 6N + 12Lhs over the dense 16-bit peak",
}


def precision(name: str) -> str:
    """16-bit format of a chip."""
    return "fp16" if name == "V100" else "bf16"


def generations(devices: np.ndarray) -> dict[str, Cases]:
    """The run on every chip at some scales."""
    model = catalog.transformer(MODEL, seq_len=shared.SEQ_LEN)
    found = {}
    for name, system in SYSTEMS.items():
        chip = shared.chip_of(system)
        plan = fsdp(devices, **shared.kernels(chip))
        found[name] = shared.cases(
            catalog.system(system, precision(name)), model, plan, coefficients(chip)
        )
    return found


def variants() -> dict[str, Cases]:
    """A100 and H100 at 256 devices under one other assumption each, two cases by name."""
    model, n = catalog.transformer(MODEL, seq_len=shared.SEQ_LEN), np.array([DEVICES])
    old, new = (catalog.system(SYSTEMS[name]) for name in PUBLISHED)
    chips = [shared.chip_of(SYSTEMS[name]) for name in PUBLISHED]
    net = new.network.replace(bytes_per_s=new.network.bytes_per_s * np.array([1.0, 0.5]))

    def pair(
        second: Any = new, by: Any = coefficients, stack: str = shared.STACK, **more: Any
    ) -> Cases:
        """Both chips, `second` as the later one's system, coefficients `by` their names, kernels of
        a stack, and more of the plan."""
        plans = [fsdp(n, **shared.kernels(chip, stack), **more) for chip in chips]
        return shared.join(
            [
                shared.cases(a, model, p, by(chip))
                for a, p, chip in zip((old, second), plans, chips, strict=True)
            ]
        )

    return {
        "as assumed": pair(),
        "weights kept for the backward pass": pair(reshard=0.0),
        "no communication": pair(gather_bytes=0.0, reduce_bytes=0.0),
        "H100 with the A100's network": pair(new.replace(network=old.network)),
        "H100 with half the bandwidth between nodes": pair(new.replace(network=net)),
        "H100 with the A100's coefficients": pair(by=lambda chip: coefficients(chips[0])),
        "both with the software of LLM Foundry": pair(
            by=lambda chip: coefficients(chip, "llm-foundry"), stack="llm-foundry"
        ),
        "both between nodes as the profile's rows have it": pair(
            by=lambda chip: coefficients(chip, curves=False)
        ),
        "both with the prior": pair(by=lambda chip: coefficients("", "", "prior", False)),
    }


def findings(found: dict[str, Answers], at: int) -> list[dict[str, Any]]:
    """Utilization of A100 and H100, its fall, and its order over all generations."""
    mfu = {name: 100.0 * float(each.mfu[at]) for name, each in found.items()}
    lines = [
        compared.points(f"4 utilization on 256 {name}", PUBLISHED.get(name), x, 5.0)
        for name, x in mfu.items()
    ]
    fall = PUBLISHED["H100"] - PUBLISHED["A100"]
    lines.append(compared.points("4 utilization A100 → H100", fall, mfu["H100"] - mfu["A100"], 5.0))
    lines.append(compared.direction("4 utilization falls A100 → H100", mfu["H100"] < mfu["A100"]))
    lines.append(compared.direction("utilization falls H100 → B200", mfu["B200"] < mfu["H100"]))
    speed = found["H100"].tokens_per_s_per_device[at] / found["A100"].tokens_per_s_per_device[at]
    lines.append(
        compared.ratio("H100 over A100, tokens/s (peak rates: 3.17)", "×", None, float(speed), None)
    )
    return lines


def table(found: dict[str, Answers], devices: np.ndarray) -> list[dict[str, Any]]:
    """One line per chip and scale."""
    return [
        {
            "chip": name,
            "devices": int(n),
            "mfu": float(each.mfu[i]),
            "tokens_per_s_per_device": float(each.tokens_per_s_per_device[i]),
            "tokens_per_device_joule": float(each.tokens_per_device_joule[i]),
            "exposed_share": float(each.exposed_share[i]),
            "headroom_gib": float(each.headroom_bytes[i]) / 2**30,
            **{f"share_{term}": float(x[i]) for term, x in shared.shares(each).items()},
        }
        for name, each in found.items()
        for i, n in enumerate(devices)
    ]


def why(found: dict[str, Answers], others: dict[str, Answers], at: int) -> list[str]:
    """Shares of the step by chip, and the finding under other assumptions."""
    text = ["Shares of the step at 256 devices [%]:"]
    for name, each in found.items():
        parts = {
            g: 100.0 * float(x[at] / each.step_time_s[at]) for g, x in shared.grouped(each).items()
        }
        text.append(
            f"  {name:<6} " + ", ".join(f"{g} {x:.1f}" for g, x in parts.items() if x >= 0.05)
        )
    text.append("Utilization of A100, of H100 and the fall by convention of model FLOPs [%]:")
    model = catalog.transformer(MODEL, seq_len=shared.SEQ_LEN)
    for convention in CONVENTIONS:
        share = float(model_flops_per_token(model, convention)) / float(
            model_flops_per_token(model)
        )
        a, b = (100.0 * share * float(found[name].mfu[at]) for name in PUBLISHED)
        text.append(f"  {convention:<50} {a:6.1f} {b:6.1f} {b - a:+6.1f}")
    text.append("The same under other assumptions [%]:")
    for name, each in others.items():
        a, b = 100.0 * each.mfu
        text.append(f"  {name:<50} {a:6.1f} {b:6.1f} {b - a:+6.1f}")
    return text


def draw(found: dict[str, Answers], devices: np.ndarray, at: int) -> Any:
    """Utilization of every generation over scale, and where the step goes at 256 devices."""
    figure = style.new_figure(11.0, 4.1)
    left, right = figure.subplots(1, 2)
    for (name, each), color in zip(found.items(), COLORS, strict=False):
        left.plot(devices, 100.0 * each.mfu, color=color, linewidth=1.8, label=name)
        if name in PUBLISHED:
            left.plot(
                [DEVICES],
                [PUBLISHED[name]],
                "o",
                color=color,
                markerfacecolor="white",
                markeredgewidth=1.5,
                zorder=5,
            )
    left.plot([], [], "o", color=style.GREY, markerfacecolor="white", label="published")
    left.set_ylim(0.0, 75.0)
    left.set_ylabel("MFU [%]")
    left.set_title("Utilization, 2 sequences per device")
    left.legend(frameon=False, ncols=2, loc="lower left")
    figures.scale_axis(left, devices)
    base = np.zeros(len(found))
    for group, color in figures.GROUP_COLORS.items():
        height = np.array(
            [
                100.0 * shared.grouped(each)[group][at] / each.step_time_s[at]
                for each in found.values()
            ]
        )
        if height.max() > 0.1:
            right.bar(list(found), height, bottom=base, color=color, label=group, width=0.62)
            base += height
    right.set_ylabel("share of the step [%]")
    right.set_title("Where the step goes at 256 devices")
    right.set_ylim(0.0, 100.0)
    right.legend(
        frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, fontsize=8
    )
    return figure


def main() -> None:
    """Evaluate every chip at every scale, compare, explain, draw."""
    args = options(__doc__ or "")
    devices = np.array(shared.WEAK_SCALES)
    at = int(np.flatnonzero(devices == DEVICES)[0])
    parts, others = generations(devices), {} if args.quick else variants()
    answered = shared.answers(parts | others)
    found = {name: answered[name] for name in parts}
    text = why(found, {name: answered[name] for name in others}, at)
    named = {"coefficients": shared.coefficients_line(*SYSTEMS) + "; V100 is in no fit"}
    assumed = (
        ASSUMPTIONS
        | named
        | {f"network of {name}": shared.catalog_line(system) for name, system in SYSTEMS.items()}
    )
    compared.deliver(
        "scaling_generations",
        assumed,
        findings(found, at),
        table(found, devices),
        draw(found, devices, at),
        args,
        text,
    )


if __name__ == "__main__":
    run_study(main)

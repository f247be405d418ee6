"""The answer about one plan as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dmodel.cli.output import Document, digits, gib, percent, seconds, show_lines, show_table

CONVENTION_NAMES = {
    "6N": "weights only",
    "6N+12Lhs": "and full attention",
    "6N+6Lhs": "and its causal half",
}


def _between(d: Document, name: str, show: Callable[[float], str]) -> str:
    """The interval of a number in brackets; blank where there is none."""
    return f" ({show(d[f'{name}_low'])} to {show(d[f'{name}_high'])})" if f"{name}_low" in d else ""


def _chunks(v: float) -> str:
    return f" of {v:g} chunks" if v > 1 else ""


def show_answer(d: Document) -> None:
    """Tables of one plan's answer."""
    _show_causes(d["breakdown"], d["step_time_s"])
    if "step_time_s_low" in d:
        show_lines(
            (
                f"90 % of such runs take {seconds(d['step_time_s_low'])} to "
                f"{seconds(d['step_time_s_high'])}."
            ),
            "",
        )
    if "pipeline_idle_share" in d:
        p = d["plan"]
        show_lines(
            f"Pipeline: {p['n_microbatches']:g} micro-batches on {p['pp']} stages"
            f"{_chunks(p['interleave'])} leave {percent(d['pipeline_idle_share'])} of the slots "
            "idle: the bubble over itself and the micro-batches.",
            "",
        )
    _show_memory(d)
    if not d["fits"]:
        show_lines(
            (
                f"DOES NOT FIT: {gib(-d['headroom_bytes'])} more than the device has; the time is "
                "what it would take if it did."
            ),
            "",
        )
    _show_room(d)
    mfu = ", ".join(
        f"{percent(x)} ({name}: {CONVENTION_NAMES[name]})" for name, x in d["mfu"].items()
    )
    show_lines(
        f"MFU at a peak of {d['peak_flops_per_s'] / 1e12:.4g} TFLOP/s ({d['precision']}): {mfu}",
        f"Throughput: {digits(d['tokens_per_s'], 4)} tokens/s, "
        f"{digits(d['tokens_per_s_per_device'], 4)} per device; "
        f"{percent(d['exposed_communication_share'])} of the step waits for communication",
        f"Energy: {digits(d['watts_per_device'])} W per device, {digits(d['joules_per_token'])} "
        "J/token with hosts and cooling, "
        f"{digits(d['kg_co2_per_million_tokens'])} kg of CO2 per million tokens on the mean grid "
        "of the United States",
        f"Cost: {digits(d['dollars_per_million_tokens'])} dollars per million tokens"
        f"{_between(d, 'dollars_per_million_tokens', digits)}, rent of the accelerators",
    )


def _show_causes(breakdown: dict[str, float], total: float) -> None:
    """Where the time of a step goes."""
    rows = [
        (name[:-2].replace("_", " "), seconds(x), percent(x / total))
        for name, x in breakdown.items()
        if x > 0.0
    ]
    show_table(
        "Step time by cause",
        ("cause", "time", "share"),
        [*rows, ("step", seconds(total), percent(1.0))],
    )


def _show_memory(d: Document) -> None:
    """What fills the fullest device."""
    memory = [(name[:-6].replace("_", " "), gib(x)) for name, x in d["memory"].items() if x > 0.0]
    memory += [
        ("sum", gib(d["memory_bytes_per_device"])),
        ("device has", gib(d["device_memory_bytes"])),
        ("headroom", gib(d["headroom_bytes"])),
        ("risk of running out", percent(d["oom_probability"])),
    ]
    show_table(f"Memory of the fullest device: {_when(d['fullest'])}", ("purpose", "bytes"), memory)
    if stages := d.get("memory_by_stage"):
        rows = [
            (
                f"{s['stage'] + 1}",
                f"{s['layers']:g}",
                f"{s['micro_batches_in_flight']:.3g}",
                SAID[s["moment"]],
                gib(s["bytes"]),
            )
            for s in stages
        ]
        heads = ("stage", "layers", "micro-batches in flight", "fullest", "bytes")
        show_table("Memory by stage", heads, rows)


def _show_room(d: Document) -> None:
    """What would make a plan fit, and which blanks decide whether it does."""
    if found := d.get("would_fit"):
        rows = [
            (
                each["change"],
                gib(each["memory_bytes_per_device"]),
                percent(each["oom_probability"]),
                seconds(each["step_time_s"]),
                digits(each["tokens_per_s_per_device"], 4),
            )
            for each in found
        ]
        heads = ("change", "memory", "risk", "step", "tokens/s per device")
        show_table("What would fit, the cheapest token first", heads, rows)
        if any("logit_bytes" in each["change"] for each in found):
            show_lines("logit_bytes=0: a loss that goes chunk by chunk (fused with the head).", "")
    elif "would_fit" in d:
        show_lines(
            "No change of one option that was tried makes it fit; `dmodel design` looks at all "
            "plans of the job.",
            "",
        )
    show_lines(*_decisive(d.get("blanks_that_decide", ())))


def _decisive(blanks: Sequence[Document]) -> list[str]:
    """Blanks that decide whether a plan fits, each in a line before an empty one."""
    lines = (
        f"A blank decides: with {each['change']} it needs "
        f"{gib(each['memory_bytes_per_device'])} and does not fit. Say which it is."
        for each in blanks
    )
    return [text for line in lines for text in (line, "")]


SAID = {
    "loss": "at the loss",
    "backward": "in the backward pass",
    "update": "at the update",
}
"""Moments of `cost.memory.MOMENTS` in words."""


def _when(fullest: Document) -> str:
    """When, and of a pipeline on which stage."""
    when = SAID[fullest["moment"]]
    several = fullest["stages"] > 1
    return f"stage {fullest['stage'] + 1} of {fullest['stages']}, {when}" if several else when

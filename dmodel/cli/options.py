"""Options that several commands share, and a decorator that gives a command a whole record of
them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit 1 when a row cannot be used or a plan does not fit.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help=(
            "Coefficients: a shipped profile or one that `dmodel fit` wrote; default: the nearest."
        ),
    ),
]
TraceFiles = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="TRACES.csv…",
        help="Measured configurations, CSV or Parquet, or folders of them.",
    ),
]
Together = Annotated[
    bool | None,
    typer.Option(
        "--configurations/--rows",
        help=(
            "Merge repeats of a configuration, or use every row; default: merge in folders and "
            "from 10,000 rows on."
        ),
    ),
]

Seed = Annotated[
    int, typer.Option(min=0, max=2**32 - 1, help="Random seed of starts and held-out groups.")
]


def token_count(text: str) -> float:
    """A number of tokens, as people write it: "15T".

    Raises:
      BadParameter: it is none.
    """
    from dmodel import units

    try:
        return units.tokens(str(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


JOB, PLAN = "The job", "The plan (dp · tp · pp · cp = devices)"
"""Headings of the options in the help."""


System = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.toml",
        help=(
            "System of the catalog, e.g. H100-DGX, or your own file: `dmodel catalog systems "
            "NAME --toml` prints a template."
        ),
        rich_help_panel=JOB,
    ),
]
Chip = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.toml",
        help="Chip in place of the system's own; without --system, in its usual system.",
        rich_help_panel=JOB,
    ),
]


Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help=(
            "A column of trace files, or any other name of `dmodel catalog settings`; overrides "
            "options and the stack's facts. Repeatable."
        ),
    ),
]


class Job(NamedTuple):
    """What is to be trained, and on what."""

    system: System = None
    devices: Annotated[int | None, typer.Option(help="Accelerators.", rich_help_panel=JOB)] = None
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of the catalog, or the path of a Hugging Face config.json.",
            rich_help_panel=JOB,
        ),
    ] = None
    seq_len: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence; default: the model's own.", rich_help_panel=JOB),
    ] = None
    global_batch: Annotated[
        int | None, typer.Option(help="Sequences per step.", rich_help_panel=JOB)
    ] = None
    precision: Annotated[
        str,
        typer.Option(
            help="Matmul precision: bf16, fp16, fp8, mxfp8, nvfp4, int8; default: bf16, or fp16 "
            "on a chip without it.",
            rich_help_panel=JOB,
        ),
    ] = ""
    profile: ProfileOption = None
    stack: Annotated[
        str,
        typer.Option(
            metavar="NAME[/RELEASE]|FILE.toml",
            help=(
                "Training software, as `dmodel catalog stacks` lists it, or your own file: sets "
                "defaults and coefficients."
            ),
        ),
    ] = ""
    settings: Settings = None
    chip: Chip = None


class Degrees(NamedTuple):
    """How the work is spread."""

    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Sequences per data-parallel rank and micro-batch; default: 1.",
            rich_help_panel=PLAN,
        ),
    ] = None
    accumulation_steps: Annotated[
        int | None,
        typer.Option(
            help="Micro-batches per step (gradient accumulation), in place of --global-batch.",
            rich_help_panel=PLAN,
        ),
    ] = None
    tp: Annotated[
        int | None, typer.Option(help="Tensor parallelism; default: 1.", rich_help_panel=PLAN)
    ] = None
    pp: Annotated[
        int | None, typer.Option(help="Pipeline stages; default: 1.", rich_help_panel=PLAN)
    ] = None
    cp: Annotated[
        int | None, typer.Option(help="Context parallelism; default: 1.", rich_help_panel=PLAN)
    ] = None
    dp: Annotated[
        int | None,
        typer.Option(
            help="Data parallelism; default: devices / (tp · pp · cp).", rich_help_panel=PLAN
        ),
    ] = None
    ep: Annotated[
        int | None,
        typer.Option(
            help="Expert parallelism, within dp · cp · tp; default: 1.", rich_help_panel=PLAN
        ),
    ] = None
    zero: Annotated[
        int | None,
        typer.Option(
            help="ZeRO stage 0–3 (3 = FSDP); default: the stack's, else 1.", rich_help_panel=PLAN
        ),
    ] = None
    shard: Annotated[
        int | None,
        typer.Option(
            help="Ranks over which ZeRO shards; default: dp (less = HSDP).", rich_help_panel=PLAN
        ),
    ] = None
    reshard: Annotated[
        bool,
        typer.Option(
            "--reshard/--no-reshard",
            help="With ZeRO 3: gather weights again for the backward pass.",
            rich_help_panel=PLAN,
        ),
    ] = True
    sp: Annotated[
        bool | None,
        typer.Option(
            "--sp/--no-sp",
            help="Sequence parallelism with tp; default: on when tp > 1.",
            rich_help_panel=PLAN,
        ),
    ] = None
    interleave: Annotated[
        int | None,
        typer.Option(
            help="Model chunks per pipeline stage; default: the stack's, else 1.",
            rich_help_panel=PLAN,
        ),
    ] = None
    recompute: Annotated[
        str,
        typer.Option(
            help=(
                "Activation recomputation: none, selective, full, or a share of layers; default: "
                "the stack's, else the least that fits."
            ),
            rich_help_panel=PLAN,
        ),
    ] = ""
    offload: Annotated[
        float | None,
        typer.Option(
            help="Share of layers with activations offloaded to the host; default: the stack's.",
            rich_help_panel=PLAN,
        ),
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            help=(
                "Pipeline: gpipe, 1f1b, interleaved, zero-bubble, zbv, dualpipe, dualpipev; "
                "default: the stack's, else 1f1b or interleaved."
            ),
            rich_help_panel=PLAN,
        ),
    ] = None
    attention: Annotated[
        str | None,
        typer.Option(
            help="Fused attention: flash, none; default: the stack's, else flash.",
            rich_help_panel=PLAN,
        ),
    ] = None


def takes(**records: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of whole records: `@takes(job=Job)` fills its parameter `job` from
    `--system`, `--devices`, …"""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = get_type_hints(command, include_extras=True)
        parameters = [
            p.replace(annotation=own[n])
            for n, p in inspect.signature(command).parameters.items()
            if n not in records
        ]
        for record in records.values():
            hints = get_type_hints(record, include_extras=True)
            defaults = record._field_defaults  # type: ignore
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters += [
                inspect.Parameter(n, kind, default=defaults[n], annotation=hints[n]) for n in hints
            ]

        def run(**values: Any) -> None:
            built = {
                name: r(**{f: values.pop(f) for f in r._fields}) for name, r in records.items()
            }  # type: ignore[attr-defined]
            command(**values, **built)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        ordered = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in ordered}
        return run

    return decorate

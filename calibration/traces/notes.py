"""Settings of a row: the column `set`, and what version 0.1 read from notes in its place.

`set` holds settings that no column has: `graphed=1; adapters=q_proj+v_proj`. Version 0.1 searched
the free text of `note` for them; `advice` names what a table of that time leaves to its notes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from dmodel.catalog.loader import nearest
from dmodel.types import InputError

Value = float | str | tuple[str, ...]
Settings = dict[str, Value]
_NAMES = (r"[\w.-]+(\s*\+\s*[\w.-]+)*", "names with `+` between", re.compile(r"[\w.-]+").findall)
_WORD = (r"[\w./-]+", "a word", str)
_NUMBER = (r"[+-]?(\d{1,18}\.?\d*|\.\d+)(e[+-]?\d\d?)?", "a number", float)
KINDS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    **dict.fromkeys(("adapters", "recompute_keeps", "recompute_modules"), _NAMES),
    **dict.fromkeys(("attention_kernel", "dispatcher", "recompute", "selective"), _WORD),
    **dict.fromkeys(("stages", "system", "tuning"), _WORD),
}
"""How settings look that are lists (the empty one `nothing`) or words; others are numbers."""


def parse_settings(text: str, known: Collection[str]) -> Settings:
    """Settings of a cell, `name=value; name=value`; lists have `+` between their items.

    Args:
      known: names that may be set.
    Raises:
      InputError: a part without `=`, an unknown name, one said twice, a value of another kind.

    >>> parse_settings("graphed=1; adapters=q_proj+v_proj", ["adapters", "graphed"])
    {'graphed': 1.0, 'adapters': ('q_proj', 'v_proj')}
    """
    found: Settings = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, value = map(str.strip, part.partition("="))
        if not (name and value):
            raise InputError(f"set: expected name=value, `;` between several; got {part!r}")
        if name in found:
            raise InputError(f"set: expected {name} once, got it twice in {text!r}")
        found[_known(name, known)] = _value(name, value)
    return found


def _known(name: str, known: Collection[str]) -> str:
    if name not in known:
        near = nearest(name, sorted(known), 1)
        hint = f"the nearest is {near[0]}" if near else f"known are {', '.join(sorted(known))}"
        raise InputError(f"set: expected the name of a setting, got {name!r}; {hint}")
    return name


def _value(name: str, text: str) -> Value:
    pattern, wanted, read = KINDS.get(name, _NUMBER)
    if not re.fullmatch(pattern, text, re.IGNORECASE):
        raise InputError(f"set: {name}: expected {wanted}, got {text!r}")
    value = () if text == "nothing" and read is _NAMES[2] else read(text)
    return tuple(value) if isinstance(value, list) else value


def format_settings(settings: Settings) -> str:
    """The text of a cell that `parse_settings` reads as these settings."""
    return "; ".join(f"{name}={_shown(value)}" for name, value in settings.items())


def _shown(value: Value) -> str:
    if isinstance(value, int | float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(float(value))
    return value if isinstance(value, str) else "+".join(value) or "nothing"


DOTS = ("qkv", "out", "up", "down")
POLICIES = {
    "minimal": DOTS, "minimal_offloaded": DOTS,
    "minimal_flash": (*DOTS, "core"), "minimal_with_context": (*DOTS, "core"),
    "save_dot_with_context_except_mlp": ("qkv", "core", "out"),
    "save_dot_except_mlpwi": ("qkv", "out", "down"), "save_dot_except_mlp": ("qkv", "out"),
    "save_qkv_proj": ("qkv",), "qkv_proj_offloaded": ("qkv",), "save_out_proj": ("out",),
}  # fmt: skip
"""What MaxText's policies keep of a layer beside its input (its `get_remat_policy`)."""
KEPT = {
    "q, k, v": "qkv", "attention outputs": "core", "attention and mlp outputs": "core",
    "results of the output projection": "out", "mlp outputs": "down",
}  # fmt: skip
"""How notes say, in any case, what a layer keeps."""


def _parts(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for said, part in KEPT.items() if said in words.lower()))


def _adapters(found: re.Match[str]) -> Settings:
    dropout = re.search(r"\badapter dropout\b", found.string) is not None
    return {"adapters": tuple(found[1].split(", ")), "adapter_dropout": float(dropout)}


def _hosted(found: re.Match[str]) -> Settings:
    """Shares of what layers keep that wait in host memory: all of some layers, or some of all."""
    words = found[1].strip().lower()
    shares = {"inputs": float("layer input" in words), "results": float(bool(_parts(words)))}
    if some := re.search(r"activations of (\d+) of ([1-9]\d*) layers$", words):
        shares = dict.fromkeys(shares, min(int(some[1]) / int(some[2]), 1.0))
    return {f"offload_{name}": share for name, share in shares.items() if share}


_POLICY = r"\bremat(?:erialization|_policy)?[ =:]+(%s)\b"
_GRAPHED: Settings = {"graphed": 1.0, "looped_experts": 0.0}
_NARROW = dict.fromkeys(("reduce_bytes", "gradient_bytes", "gather_bytes"), 2.0)
READINGS: tuple[tuple[str, str, Settings | Callable[[re.Match[str]], Settings]], ...] = (
    ("graphs", r"CUDA graphs on|\bconfig_\w+_cg(_\w+)?\.sh", _GRAPHED),
    ("dispatcher", "dispatcher DeepEP", {"dispatcher": "deepep"}),
    ("heads", "w/ MTP", {"n_mtp": 1.0}), ("heads", "w/o MTP", {"n_mtp": 0.0}),
    ("packed", r"\bpacked sequences\b", {"packed_window": 500.0}),
    ("adapters", r"\badapters on (\w+(?:, \w+)*)", _adapters),
    ("kernel", "FlashAttention-2", {"attention_kernel": "flash-2"}),
    ("gathers", "fp8 parameters", {"gather_bytes": 1.0}),
    ("widths", "weights in 16 bits", {**_NARROW, "optimizer_bytes": 6.0}),
    ("again", r"\b(?:every second layer|1 of ([1-9]\d*) layers) recomputed",
     lambda found: {"recompute_layers": 1.0 / int(found[1] or 2)}),
    ("again", _POLICY % "|".join(POLICIES), lambda m: {"recompute_keeps": POLICIES[m[1]]}),
    ("again", r"(?:^|; )([^;]*?) kept\b[^;]*, the rest recomputed",
     lambda found: {"recompute_keeps": _parts(found[1])}),
    ("again", r"\brecompute of modules (\w+(?:, \w+)*)",
     lambda found: {"recompute_modules": tuple(found[1].split(", "))}),
    ("hosted", r"(?:^|; |: )([^;:]*?) kept in host memory", _hosted),
    ("hosted", _POLICY % "minimal_offloaded|qkv_proj_offloaded", {"offload_results": 1.0}),
)  # fmt: skip
"""(subject, words, what they set): the first words of a subject decide it."""


def _said(note: str) -> dict[str, tuple[str, Settings]]:
    """By subject, the words of a note and what they set."""
    found: dict[str, tuple[str, Settings]] = {}
    for subject, pattern, value in READINGS:
        if subject not in found and (words := re.search(pattern, note)):
            settings = dict(value) if isinstance(value, dict) else value(words)
            found[subject] = words[0].strip(";: "), settings
    return found


def settings_of(note: str) -> Settings:
    """What version 0.1 understood of a note, whatever the row's columns and stack."""
    return {name: value for _, said in _said(note).values() for name, value in said.items()}


class Written(NamedTuple):
    """Cells of a row, and its stack as it is written."""

    cells: Mapping[str, str]
    stack: str

    def text(self, name: str) -> str:
        return (self.cells.get(name) or "").strip()

    def count(self, name: str, blank: float = 0.0) -> float:
        try:
            return float(round(float(self.text(name))))
        except (ValueError, OverflowError):
            return blank

    def answered(self) -> set[str]:
        """Settings that the row says, or that are no question there."""
        names = {part.partition("=")[0].strip() for part in self.text("set").split(";")}
        dense = max(self.count("n_experts"), self.count("ep")) <= 1.0
        return names | {"looped_experts"} if dense else names

    def runs(self, *stacks: str) -> bool:
        """Whether the stack begins as one of these; "name/" is a whole name."""
        return f"{self.stack.lower()}/".startswith(stacks)

    def shards(self, ranks: float, of: str = "") -> str:
        """So many ranks of dp, or so many of a column's, if that is a part of dp."""
        others = math.prod(max(self.count(name), 1.0) for name in ("tp", "pp", "cp"))
        dp = self.count("dp") or self.count("n_accel") / others
        size = max(ranks * dp / max(self.count(of), 1.0) if of else ranks, 1.0)
        return f"{size:g}" if size < dp and dp % size == 0.0 else ""

    def by_log(self, accumulated: float) -> str:
        """Ranks of dp that accumulate so many micro-batches; "" where the row says so."""
        dp = self.count("global_batch") / (accumulated * max(self.count("micro_batch"), 1.0))
        return f"{dp:g}" if 1.0 <= dp == int(dp) != self.count("dp") else ""


BRIDGE, NEMO = "megatron-bridge/", ("nemo/", "nemo-launcher/")
XLA = ("maxtext", "jax", "pax", "levanter", "tpu", "gpu-recipes", "dmodel-collect/jax")
MASTER = ("llm-foundry", "torchtitan", "fms-fsdp", "fsdp", "maxtext", "jax-toolbox", "gpu-recipes",
          "tpu-recipes", "pax")  # fmt: skip
COUNTS: dict[str, Callable[[Written], bool]] = {
    "graphs": lambda row: not row.runs(*XLA),
    "dispatcher": lambda row: not row.runs(BRIDGE),
    "adapters": lambda row: "lora" in row.text("flag").lower(),
    "kernel": lambda row: row.text("attention") != "none" and not row.runs("llm-foundry"),
    "gathers": lambda row: row.runs("mlperf", *NEMO) and row.text("precision").lower() == "fp8"
    and row.count("zero_stage", 1.0) == 1.0,
    "widths": lambda row: row.runs(*MASTER) and row.count("zero_stage") == 3.0
    and not row.text("precision").lower().startswith("fp32"),
    "again": lambda row: row.text("recompute") not in ("none", "full"),
    "release": lambda row: row.stack.lower() in ("megatron-bridge", "nemo"),
    "revision": lambda row: row.stack.lower() == "jax-toolbox-pax",
    "shard": lambda row: row.count("zero_stage") == 3.0 and not row.text("shard"),
    "log": lambda row: row.runs("mlperf") and "lora" in row.text("flag").lower(),
}  # fmt: skip
"""Of which rows version 0.1 read a subject; of all, where there is no entry."""
COLUMNS: tuple[tuple[str, str, str, Callable[[re.Match[str], Written], str]], ...] = (
    ("release", "stack", r"\brelease[= ](\d\d\.\d\d)(?!\d)", lambda m, row: f"{row.stack}/{m[1]}"),
    ("revision", "stack", r"\brevision[= ]([0-9a-f]{7,40})\b", lambda m, row: f"{row.stack}/{m[1]}"
     + "-te" * (re.search(r"\bprecision_label=TE\b", m.string) is not None)),
    ("shard", "shard", r"(?:fsdp_ici=|shard=|FSDP in node\(|DP=\d+,FSDP=)(\d+)",
     lambda m, row: row.shards(float(m[1]))),
    ("shard", "shard", r"of (\d+) chips, data parallel between pods",
     lambda m, row: row.shards(float(m[1]), "n_accel")),
    ("log", "dp, and fill tp and cp", r"\b(?:gradient accumulation |logged_grad_accum=)([1-9]\d*)",
     lambda m, row: row.by_log(float(m[1]))),
)  # fmt: skip
"""(subject, column, words, what they fill it with)."""


def read_by_0_1(row: Written) -> list[tuple[str, Settings]]:
    """Words of a row's note that version 0.1 read, and what of them the row does not say else."""
    found = []
    for subject, (words, said) in _said(row.text("note")).items():
        left = {name: value for name, value in said.items() if name not in row.answered()}
        if left and COUNTS.get(subject, bool)(row):
            found.append((words, left))
    return found


def columns_by_0_1(row: Written) -> dict[str, tuple[str, str]]:
    """By column that version 0.1 filled from a row's note, its words and what it filled in."""
    found: dict[str, tuple[str, str]] = {}
    for subject, column, pattern, value in COLUMNS:
        words = re.search(pattern, row.text("note")) if COUNTS[subject](row) else None
        if words and (cell := value(words, row)):
            found.setdefault(column, (words[0], cell))
    return found


def advice(row_cells: Mapping[str, str], stack: str) -> list[str]:
    """What version 0.1 read in a row's note and its cells do not say: what to write where."""
    row = Written(row_cells, stack)
    settings = [(w, format_settings(said), "set") for w, said in read_by_0_1(row)]
    cells = [(w, cell, column) for column, (w, cell) in columns_by_0_1(row).items()]
    return [f"note {w!r} is not read: write `{cell}` into {to}" for w, cell, to in settings + cells]

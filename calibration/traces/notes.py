"""What version 0.1 read from notes, which no table says now: advice, phrase by phrase.

Settings that no column has stand in the column `set`. Version 0.1 had none and searched the free
text of `note` in its place, so a table of that time says its settings there alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dmodel.recomputation import MODULES
from dmodel.settings import text_of

Settings = dict[str, Any]

DOTS = ("qkv", "out", "up", "down")
POLICIES = {
    **dict.fromkeys(("minimal", "minimal_offloaded"), DOTS),
    **dict.fromkeys(("minimal_flash", "minimal_with_context"), (*DOTS, "core")),
    "save_dot_with_context_except_mlp": ("qkv", "core", "out"),
    "save_dot_except_mlpwi": ("qkv", "out", "down"),
    "save_dot_except_mlp": ("qkv", "out"),
    "save_qkv_proj": ("qkv",),
    "qkv_proj_offloaded": ("qkv",),
    "save_out_proj": ("out",),
}
"""What policies of that name keep of a layer beside its input."""

KEPT = {
    "q, k, v": "qkv",
    "attention outputs": "core",
    "attention and mlp outputs": "core",
    "results of the output projection": "out",
    "mlp outputs": "down",
}
"""How notes said, in any case, what a layer keeps."""


def _parts(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part for said, part in KEPT.items() if said in words.lower()))


def _adapters(found: re.Match[str]) -> Settings:
    dropout = re.search(r"\badapter dropout\b", found.string) is not None
    return {"adapters": tuple(found[1].split(", ")), "adapter_dropout": float(dropout)}


def _hosted(found: re.Match[str]) -> Settings:
    """Shares of what layers keep that wait in host memory: all of some layers, or some of all."""
    words = found[1].strip().lower()
    if some := re.search(r"activations of (\d+) of ([1-9]\d*) layers$", words):
        return {"offload": min(int(some[1]) / int(some[2]), 1.0)}
    shares = {"inputs": float("layer input" in words), "results": float(bool(_parts(words)))}
    return {f"offload_{name}": share for name, share in shares.items() if share}


_POLICY = r"\bremat(?:erialization|_policy)?[ =:]+(%s)\b"
_NARROW = dict.fromkeys(("reduce_bytes", "gradient_bytes", "gather_bytes"), 2.0)
READINGS: tuple[tuple[str, str, Settings | Callable[[re.Match[str]], Settings]], ...] = (
    ("graphs", r"CUDA graphs on|\bconfig_\w+_cg(_\w+)?\.sh", {"graphed": 1.0}),
    ("dispatcher", "dispatcher DeepEP", {"dispatcher": "deepep"}),
    ("heads", "w/(o?) MTP", lambda found: {"n_mtp": float(not found[1])}),
    ("packed", r"\bpacked sequences\b", {"packed_window": 500.0}),
    ("adapters", r"\badapters on (\w+(?:, \w+)*)", _adapters),
    ("kernel", "FlashAttention-2", {"attention_kernel": "flash-2"}),
    ("gathers", "fp8 parameters", {"gather_bytes": 1.0}),
    ("widths", "weights in 16 bits", {**_NARROW, "optimizer_bytes": 6.0}),
    (
        "again",
        r"\b(?:every second layer|1 of ([1-9]\d*) layers) recomputed",
        lambda found: {"recompute_layers": 1.0 / int(found[1] or 2)},
    ),
    ("again", _POLICY % "|".join(POLICIES), lambda m: {"recompute_keeps": POLICIES[m[1]]}),
    (
        "again",
        r"(?:^|; )([^;]*?) kept\b[^;]*, the rest recomputed",
        lambda found: {"recompute_keeps": _parts(found[1])},
    ),
    (
        "again",
        r"\brecompute of modules (\w+(?:, \w+)*)",
        lambda found: {"recompute_modules": [n for n in found[1].split(", ") if n in MODULES]},
    ),
    ("hosted", r"(?:^|; |: )([^;:]*?) kept in host memory", _hosted),
    ("hosted", _POLICY % "minimal_offloaded|qkv_proj_offloaded", {"offload_results": 1.0}),
)
"""(subject, words, what they set): the first words of a subject decide it."""


class Written(NamedTuple):
    """Cells of a row."""

    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """A cell without blanks around it."""
        return (self.cells.get(name) or "").strip()

    def count(self, name: str) -> float:
        """A cell as a whole number; 0 where it is none."""
        try:
            return float(round(float(self.text(name))))
        except (ValueError, OverflowError):
            return 0.0

    def shard(self, ranks: float, devices: float = 0.0) -> str:
        """So many ranks of dp, or those on so many devices, where ZeRO 3 shards over a part of it
        that no cell says."""
        others = math.prod(max(self.count(name), 1.0) for name in ("tp", "pp", "cp"))
        dp = self.count("dp") or self.count("n_accel") / others
        size = max(ranks or devices * dp / max(self.count("n_accel"), 1.0), 1.0)
        open_ = self.count("zero_stage") == 3.0 and not self.text("shard")
        return f"{size:g}" if open_ and size < dp and dp % size == 0.0 else ""

    def by_log(self, accumulated: float) -> str:
        """Ranks of dp that accumulate so many micro-batches, where adapters are trained."""
        dp = self.count("global_batch") / (accumulated * max(self.count("micro_batch"), 1.0))
        tuned = "lora" in self.text("flag").lower()
        return f"{dp:g}" if tuned and 1.0 <= dp == int(dp) != self.count("dp") else ""

    def variant(self, name: str) -> str:
        """The stack with a variant, where it has none."""
        stack = self.text("stack") or self.text("source")
        return f"{stack}/{name}" if stack and "/" not in stack else ""


COLUMNS: tuple[tuple[str, str, Callable[[re.Match[str], Written], str]], ...] = (
    ("stack", r"\brelease[= ](\d\d\.\d\d)(?!\d)", lambda m, row: row.variant(m[1])),
    (
        "stack",
        r"\brevision[= ]([0-9a-f]{7,40})\b",
        lambda m, row: row.variant(m[1] + "-te" * ("precision_label=TE" in m.string)),
    ),
    (
        "shard",
        r"(?:fsdp_ici=|shard=|FSDP in node\(|DP=\d+,FSDP=)(\d+)",
        lambda m, row: row.shard(float(m[1])),
    ),
    (
        "shard",
        r"of (\d+) chips, data parallel between pods",
        lambda m, row: row.shard(0.0, float(m[1])),
    ),
    (
        "dp (and fill tp and cp)",
        r"\b(?:gradient accumulation |logged_grad_accum=)([1-9]\d*)",
        lambda m, row: row.by_log(float(m[1])),
    ),
)
"""(column, words, what they fill it with)."""


def _answered(row: Written) -> set[str]:
    """Subjects that are no question in a row, or that its columns answer."""
    answers = {
        "adapters": "lora" not in row.text("flag").lower(),
        "kernel": row.text("attention") == "none",
        "again": row.text("recompute") in ("none", "full"),
    }
    return {subject for subject, answered in answers.items() if answered}


def _settings(row: Written) -> dict[str, Settings]:
    """By words of a row's note, the settings that they were read as."""
    found: dict[str, Settings] = {}
    done = _answered(row)
    for subject, pattern, value in READINGS:
        words = None if subject in done else re.search(pattern, row.text("note"))
        if words:
            done.add(subject)
            said = value if isinstance(value, dict) else value(words)
            found.setdefault(words[0].strip(";: "), {}).update(said)
    return found


def _graphed(row: Written, said: Settings) -> Settings:
    """Graphs of whole layers launch products of experts too."""
    mixture = max(row.count("n_experts"), row.count("ep")) > 1.0
    return {**said, "looped_experts": 0.0} if mixture and "graphed" in said else said


def advice(cells: Mapping[str, str]) -> list[str]:
    """What version 0.1 read in a row's note: each phrase, and what to write where in its place.

    >>> advice({"note": "CUDA graphs on"})
    ["note 'CUDA graphs on' is not read: write `graphed=1` into the column set"]
    """
    row = Written(cells)
    found = [(words, text_of(_graphed(row, said)), "set") for words, said in _settings(row).items()]
    for column, pattern, value in COLUMNS:
        if words := re.search(pattern, row.text("note")):
            found.append((words[0], value(words, row), column))
    return [
        f"note {words!r} is not read: write `{text}` into the column {column}"
        for words, text, column in found
        if text
    ]

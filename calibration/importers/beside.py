"""Files beside a log that say how the run was made: a model's `config.json`, a launch script, the
configuration of a framework; as cells of its rows.

Nothing in them is run: a script is read word by word, its variables as far as they are assigned
plain text.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from calibration.importers import maxtext, megatron, memory, nemo, settings, torchtitan
from calibration.importers.found import Result, cell, count, number, truth
from calibration.importers.source import Line, Source
from dmodel.catalog.configs import read as read_config
from dmodel.counts import parameters
from dmodel.errors import InputError
from dmodel.named_shape import catalog_shape, columns_of

Cells = dict[str, str]
Words = dict[str, str]


class Beside(NamedTuple):
    """What a file says. kind: of file, for people. cells: by column."""

    path: Path
    kind: str
    cells: Cells


_SECTION = re.compile(r"^\[(?:training|parallelism|model)\]", re.MULTILINE)

HELP = (
    "a Hugging Face or DeepSpeed config.json, a launch script, the configuration of Megatron, "
    "NeMo, MaxText, Axolotl or LLaMA-Factory (YAML) or torchtitan (TOML), or a memory snapshot"
)


def beside(path: Path) -> Beside:
    """Read a file that stands beside a log.

    Raises:
      InputError: it cannot be read, is of no known kind, or says nothing of a row.
    """
    source = Source.of(path)
    if memory.is_pickle(source.data):
        raise InputError(f"{path}: {memory.CONVERT}")
    if not source.is_text:
        raise InputError(f"{path}: no text; expected {HELP}")
    kind, told = _told(path, source)
    cells = {}
    for name, value in told.items():
        text, why = cell(name, value)
        if text and not why:
            cells[name] = text
    if not cells:
        raise InputError(f"{path}: read as {kind}, and it says nothing of a row; expected {HELP}")
    return Beside(path, kind, cells)


def _told(path: Path, source: Source) -> tuple[str, dict[str, Any]]:
    """Kind of file, and values by column."""
    if memory.SIGN.search(source.text[: 1 << 20]):
        found = memory.peak(source, Result(source.name))
        return "memory", found.cells if found else {}
    if source.text.lstrip()[:1] == "{":
        return _of_json(path, source)
    if path.suffix == ".toml" or _SECTION.search(source.text):
        return _of_toml(path, source)
    if path.suffix in (".yaml", ".yml"):
        return _of_yaml(source.lines)
    return _of_script(source)


def _of_json(path: Path, source: Source) -> tuple[str, dict[str, Any]]:
    try:
        document = json.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: no JSON ({str(error)[:60]}); expected {HELP}") from None
    if any(name in document for name in ("train_batch_size", "zero_optimization")):
        return "configuration of DeepSpeed", _deepspeed(settings.flat(document))
    return "config.json of a model", _model(path, document)


SHAPE = "n_layers d_model d_ff gated_mlp n_heads n_kv_heads head_dim vocab".split()
OF_EXPERTS = ("n_experts", "top_k")


def _model(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a model, its count of parameters among them, and its name where the catalog has
    it under the name that the file says."""
    model = read_config(path).model
    columns = columns_of(model)
    names = [*SHAPE, *(OF_EXPERTS if columns.get("n_experts", 0.0) > 1.0 else ())]
    named = _name(str(document.get("_name_or_path", "")))
    known = named and catalog_shape(named)
    return {n: float(columns[n]) for n in names if n in columns} | {
        "n_params": float(parameters(model)),
        "model": named if known else None,
    }


def _deepspeed(config: settings.Settings) -> dict[str, Any]:
    half = next((h for h in ("bf16", "fp16") if truth(config.get(f"{h}.enabled"))), None)
    return {
        "global_batch": count(config.get("train_batch_size")),
        "micro_batch": count(config.get("train_micro_batch_size_per_gpu")),
        "zero_stage": number(config.get("zero_optimization.stage")),
        "precision": half,
    }


def _of_toml(path: Path, source: Source) -> tuple[str, dict[str, Any]]:
    try:
        config = settings.flat(tomllib.loads(source.text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: no TOML ({str(error)[:80]}); expected {HELP}") from None
    return "configuration of torchtitan", torchtitan.of_configuration(config)


DASHED = re.compile(r"^(\s*)(?:- )?['\"]?--([\w\-]+)['\"]?\s*:")
"""A key of YAML that is an argument of a command."""


def _of_yaml(lines: list[Line]) -> tuple[str, dict[str, Any]]:
    """A configuration in YAML: whose it is, is told by its keys."""
    plain = [
        Line(n, DASHED.sub(lambda found: f"{found[1]}{found[2].replace('-', '_')}:", text))
        for n, text in lines
    ]
    return _by_keys(settings.yaml(plain))


def _by_keys(config: settings.Settings) -> tuple[str, dict[str, Any]]:
    """What some settings say, by whose names they have."""
    last = {name.rpartition(".")[2]: value for name, value in config.items()}
    for kind, sign, read in KINDS:
        if sign & (set(config) | set(last)):
            return kind, read(config, last)
    return "settings", {}


def _maxtext(config: settings.Settings, last: settings.Settings) -> dict[str, Any]:
    return maxtext.described(last)[0]


def _nemo(config: settings.Settings, last: settings.Settings) -> dict[str, Any]:
    return nemo.described(config)[0]


def _megatron(config: settings.Settings, last: settings.Settings) -> dict[str, Any]:
    found = megatron.described(_whole(last))[0]
    return found | {"global_batch": count(last.get("global_batch_size"))}


ABSENT = {
    "swiglu": "False",
    "sequence_parallel": "False",
    "use_distributed_optimizer": "False",
    "recompute_granularity": "None",
    "tensor_model_parallel_size": "1",
    "pipeline_model_parallel_size": "1",
}
"""Arguments of Megatron-LM that a whole command leaves out → what they are then
(`megatron/training/arguments.py`)."""


def _whole(arguments: settings.Settings) -> settings.Settings:
    """Arguments of Megatron-LM with those left out, where they are those of a whole command."""
    return ABSENT | arguments if {"num_layers", "hidden_size"} <= set(arguments) else arguments


TRAINER = {
    "seq_len": ("sequence_len", "cutoff_len", "max_seq_length", "model_max_length", "block_size"),
    "micro_batch": ("micro_batch_size", "per_device_train_batch_size"),
}
"""Column → settings of Axolotl, LLaMA-Factory and the Hugging Face Trainer."""


def _trainer(config: settings.Settings, last: settings.Settings) -> dict[str, Any]:
    cells: dict[str, Any] = {
        name: next((n for key in keys if (n := count(last.get(key)))), None)
        for name, keys in TRAINER.items()
    }
    each, pieces = cells["micro_batch"], count(last.get("gradient_accumulation_steps")) or 1
    devices = count(last.get("world_size"))
    half = next((h for h in ("bf16", "fp16") if truth(last.get(h))), None)
    adapted = last.get("adapter", last.get("finetuning_type", "")) in ("lora", "qlora")
    return cells | {
        "n_accel": devices,
        "global_batch": each * pieces * devices if each and devices else None,
        "precision": half,
        "flag": "lora" if adapted else None,
        "model": _name(last.get("base_model", last.get("model_name_or_path"))),
        "recompute": "full" if truth(last.get("gradient_checkpointing")) else None,
        "attention": "flash" if truth(last.get("flash_attention")) else None,
    }


def _name(path: str | None) -> str | None:
    """A model's name without whose it is; a path of this machine is none."""
    return None if not path or path.startswith(("/", ".", "~")) else path.rpartition("/")[2]


def _launcher(config: settings.Settings, last: settings.Settings) -> dict[str, Any]:
    return {"n_accel": count(last.get("world_size"))}


KINDS = (
    (
        "configuration of MaxText",
        {"base_emb_dim", "per_device_batch_size", "ici_fsdp_parallelism", "max_target_length"},
        _maxtext,
    ),
    (
        "configuration of torchtitan",
        {"training.seq_len", "training.local_batch_size", "parallelism.tensor_parallel_degree"},
        lambda config, last: torchtitan.of_configuration(config),
    ),
    ("configuration of NeMo", {"trainer.num_nodes", "model.micro_batch_size"}, _nemo),
    (
        "configuration of the Trainer, Axolotl or LLaMA-Factory",
        {"per_device_train_batch_size", "sequence_len", "cutoff_len", "base_model"},
        _trainer,
    ),
    (
        "arguments of Megatron-LM",
        {"tensor_model_parallel_size", "num_layers", "hidden_size", "micro_batch_size"},
        _megatron,
    ),
    ("launcher", {"world_size"}, _launcher),
)
"""Kind of configuration, settings by which it is told, and how it is read."""

_ASSIGNED = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?[-=]([^}$]*))?\}|([A-Za-z_]\w*))")
_ARRAY = re.compile(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}")
_BATCH = re.compile(r"^#SBATCH\s+(.*)$")

EACH = ("nproc_per_node", "gpus_per_node", "ntasks_per_node", "gpus_per_task", "num_processes")
NODES = ("nnodes", "nodes", "num_nodes", "num_machines")
SHORT = {"-N": "--nodes", "-n": "--ntasks"}
DEEP = 20


def _of_script(source: Source) -> tuple[str, dict[str, Any]]:
    """A script of a shell: arguments of the commands in it, told by their names."""
    words = _words(source)
    if not words:
        return "launch script", {}
    kind, cells = _by_keys(words)
    return f"launch script with {kind}", cells | (
        {} if cells.get("n_accel") else {"n_accel": count(words.get("world_size"))}
    )


def _words(source: Source) -> Words:
    """Arguments by name, the last one counts; a switch without a value is True."""
    text = re.sub(r"\\\s*\n", " ", "\n".join(line.text for line in source.lines))
    variables = _variables(text)
    found: Words = {}
    for line in re.split(r"\n|;|&&", text):
        batch = _BATCH.match(line.strip())
        plain = batch[1] if batch else re.sub(r"(^|\s)#.*$", "", line)
        found |= dict(_arguments(_split(_filled(plain, variables))))
    devices = _world(found)
    return found | ({"world_size": str(devices)} if devices else {})


def _variables(text: str) -> Words:
    """Variables that are assigned plain text, and arrays of words."""
    found: Words = {}
    for name, inside in re.findall(r"([A-Za-z_]\w*)\+?=\(([^()]*)\)", text):
        plain = re.sub(r"(?m)(^|\s)#.*$", "", inside)
        found[name] = " ".join([found.get(name, ""), *plain.split()]).strip()
    for statement in re.split(r"\n|;|&&", text):
        match = _ASSIGNED.match(statement.partition(" #")[0])
        if match and "(" not in match[2]:
            found[match[1]] = _by_itself(match[1], match[2].strip().strip("'\""))
    return found


def _by_itself(name: str, text: str) -> str:
    """A value that gives its own name a default: that default."""
    return _VARIABLE.sub(lambda f: f[2] if f[1] == name and f[2] is not None else f[0], text)


def _filled(text: str, variables: Words) -> str:
    """A line with its variables filled in; `${NAME:-default}` without a NAME is the default."""

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[3]
        return variables.get(name, found[2] if found[2] is not None else found[0])

    for _ in range(DEEP):
        filled = _VARIABLE.sub(value, _ARRAY.sub(lambda f: variables.get(f[1], f[0]), text))
        if filled == text or len(filled) > 1 << 16:
            break
        text = filled
    return text


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return text.split()


def _arguments(words: list[str]) -> Iterator[tuple[str, str]]:
    """`--name value`, `--name=value` and `name=value`, names as Python writes them."""
    for i, word in enumerate(words):
        word = SHORT.get(word, word)
        behind = words[i + 1] if i + 1 < len(words) else ""
        if not word.startswith("--"):
            name, equals, value = word.partition("=")
            if equals and re.fullmatch(r"[\w.]+", name) and not value.startswith("$"):
                yield name, value
            continue
        name, equals, value = word[2:].partition("=")
        alone = not behind or behind.startswith("-") and number(behind) is None
        text = value if equals else ("True" if alone else behind)
        if "$" not in text:
            yield name.replace("-", "_"), text


def _world(words: Mapping[str, str]) -> int | None:
    """Processes of a launcher: those of a node times nodes."""
    each = next((n for name in EACH if (n := _last_number(words.get(name)))), None)
    nodes = next((n for name in NODES if (n := _last_number(words.get(name)))), None)
    if "num_processes" in words:
        return count(words["num_processes"])
    if each is None:
        return count(words.get("ntasks"))
    return each * (nodes or 1)


def _last_number(text: str | None) -> int | None:
    """A count, which may stand behind a word (`gpu:8`) or a range (`1:4`)."""
    return count((text or "").rpartition(":")[2])

"""A configuration file as a model, with what is taken for granted, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dmodel.catalog.configs.families import PLAIN, Family, Rules, family_of, model_types, rules
from dmodel.catalog.configs.layers import MissingKey, Scope, model
from dmodel.catalog.configs.source import Source, source
from dmodel.catalog.loader import nearest
from dmodel.errors import InputError
from dmodel.records import Model


class Reading(NamedTuple):
    """A model, and what was taken for granted to read it, in words."""

    model: Model
    notes: tuple[str, ...]


def read(path: Path, seq_len: float | None = None) -> Reading:
    """Read a model from its `config.json`.

    Heads that predict further tokens are left out: whether a run trains them is the run's choice
    (`n_mtp`). Towers of other modes are left out, and that is said.

    Args:
      seq_len: sequence length [token] of the caller's own, where the file need not name one.
    Raises:
      InputError: no such file, not JSON, an encoder, a mechanism that is not modelled, missing keys
        (all named), or a value that is no count.
    """
    known = rules()
    found = source(path, known.parts, known.spellings, known.shared)
    _refuse_encoders(found, known)
    family, word = family_of(found.types)
    _refuse_types(found, known, word)
    scope = Scope(found.keys, found.written, family, known)
    try:
        _refuse_mechanisms(found, family, known, bool(word))
        return Reading(
            _model(found, family, scope, seq_len),
            tuple(dict.fromkeys(_notes(found, family, known, scope, word))),
        )
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None


def _refuse_encoders(found: Source, known: Rules) -> None:
    """Refuse a file whose keys say that it is no decoder alone."""
    for key, says in known.encoders.items():
        if found.keys.get(key):
            raise InputError(
                f"{found.path}: {key!r} says {says}; only decoders are modelled, and this is none"
            )


def _refuse_types(found: Source, known: Rules, word: str) -> None:
    """Refuse model types that are known not to be modelled, unless a nearer one is read."""
    for kind in found.types:
        if kind == word:
            return
        if kind in known.types:
            raise InputError(f"{found.path}: model_type {kind!r}: {known.types[kind]}")


def _refuse_mechanisms(found: Source, family: Family, known: Rules, is_known: bool) -> None:
    """Refuse keys of mechanisms that are not modelled; of an unknown model type, all that seem to
    say something of its structure, too."""
    for key, value in found.keys.items():
        if key in family.used or not _says_something(value):
            continue
        if key in known.mechanisms:
            raise InputError(
                f"{found.written.get(key, key)!r} is {value!r:.40}: {known.mechanisms[key]}"
            )
        if not is_known and _is_structural(key, value, known):
            raise InputError(
                f"{_unknown(found)}, and its key {key!r} ({value!r:.40}) is none of a plain "
                "decoder's; what it means is not known here"
            )


def _says_something(value: Any) -> bool:
    """Whether a value is not what absent keys mean."""
    return value is True or (bool(value) and value not in (1, "none", "None"))


def _is_structural(key: str, value: Any, known: Rules) -> bool:
    """Whether a key seems to say something of a model's structure."""
    if isinstance(value, bool | str) or known.harmless.fullmatch(key) or key in known.others:
        return False
    return known.structural.search(key) is not None


def _unknown(found: Source) -> str:
    """That a model type is not known, with the nearest ones."""
    if not found.types:
        return "there is no 'model_type'"
    close = nearest(found.types[0], model_types())
    hint = f" (nearest: {', '.join(close)})" if close else ""
    return f"model_type {found.types[0]!r} is not known{hint}"


def _model(found: Source, family: Family, scope: Scope, seq_len: float | None) -> Model:
    """The model; keys that are missing are all named."""
    for each in family.refusals:
        if _holds(each.when, scope):
            raise InputError(scope.words(each.say))
    missing: list[str] = []
    while len(missing) <= len(family.used):
        try:
            whole = model(family, scope, seq_len)
        except MissingKey as key:
            missing.append(str(key))
            found.keys[str(key)] = 1
            continue
        except InputError:
            if not missing:
                raise
            break
        if not missing:
            return whole
        break
    raise InputError(_missing(found, family, missing))


def _missing(found: Source, family: Family, missing: list[str]) -> str:
    """That keys are missing, all named."""
    longest = "max_position_embeddings"
    hint = f"; {longest} is not needed with a sequence length of your own"
    known = family.name != PLAIN
    what = f"model_type {found.types[0]!r} needs the missing keys" if known else _unknown(found)
    lacks = "" if known else ", and keys of a decoder are missing"
    return f"{what}{lacks}: {', '.join(missing)}{hint if longest in missing else ''}"


def _holds(formula: str, scope: Scope) -> bool:
    """Whether a condition holds; not where a key that it asks for is missing."""
    try:
        return bool(scope.value(formula))
    except MissingKey:
        return False


def _notes(found: Source, family: Family, known: Rules, scope: Scope, word: str) -> Iterator[str]:
    """What was taken for granted."""
    yield from _of_source(found, family, known, word)
    for each in family.notes:
        if _holds(each.when, scope):
            yield scope.words(each.say)
    for key, value in scope.assumed.items():
        yield f"{key} is not in the file: {value:.12g}, as transformers has it"
    for key in known.further:
        if found.keys.get(key):
            yield f"heads of further tokens ({key} {found.keys[key]}) are left out (n_mtp 0)"
    unused = [
        key
        for key, value in found.keys.items()
        if key not in family.used and _says_something(value) and _is_structural(key, value, known)
    ]
    if unused:
        yield f"keys that are not used: {', '.join(unused)}"


def _of_source(found: Source, family: Family, known: Rules, word: str) -> Iterator[str]:
    """Which part of the file is read, and as what."""
    outside = ", ".join(key for key in found.outside if known.towers.search(key))
    if found.nested:
        yield f"the language model in {found.nested!r} is read"
    if outside:
        yield f"other towers are left out: {outside}"
    if not word:
        yield f"{_unknown(found)}: read by its keys, as a decoder"
    elif not found.nested and word != found.types[0]:
        yield f"{_unknown(found)}: read as {family.name}, by the architecture {word}"

"""The keys of a ``config.json``, and what the table ``hf_families.toml`` says of them.

It lists the families by ``model_type``, with the meaning of their keys and their defaults.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import copy
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from simulator.errors import ConfigError, insist
from simulator.units import FieldError, total_of

VERSION = "transformers 5.24.0"
"""Origin of the facts in the table."""

Family = SimpleNamespace
"""How to read the files of one ``model_type``; ``[base]`` of the table explains the fields."""


def _families(base: dict[str, Any], table: Mapping[str, dict[str, Any]]) -> dict[str, Family]:
    """Make a family from each entry of the table, which says how it differs from an earlier one, or from `base`."""
    families: dict[str, Family] = {}
    for name, entry in table.items():
        family = _joined(vars(families[entry["like"]]) if "like" in entry else base, entry)
        defaults = {key: value for key, value in family["defaults"].items() if key not in entry.get("absent", ())}
        families[name] = Family(**family | {"defaults": defaults})
    return families


def _joined(family: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    """Return what holds of a family where an entry says how it differs; some fields of both are put together."""
    both = ("defaults", "keys", "model", "attention", "feed_forward", "state", "usual", "when")
    return family | entry | {key: family[key] | entry.get(key, {}) for key in both}


_TABLE = tomllib.loads(Path(__file__).with_name("hf_families.toml").read_text(encoding="utf-8"))
FAMILIES = _families(_TABLE["base"], _TABLE["families"])
"""``model_type`` -> family."""
_NULLS, _RULES = ({key: classes.split() for key, classes in _TABLE[part].items()} for part in ("nulls", "rules"))
"""Key with a default that may be null, and rule of sizes -> classes in which that holds."""
SETS = {name: frozenset(keys.split()) for name, keys in _TABLE["sets"].items()}
"""Sets of keys, which the table explains: those that are ``irrelevant``, or say nothing in some models."""
_ENDINGS, _TEXTS = (tuple(_TABLE[name].split()) for name in ("endings", "texts"))
"""Endings of further irrelevant keys, and of keys whose text says nothing of a structure."""
PARTS = {part: {name: keys.split() for name, keys in table.items()} for part, table in _TABLE["parts"].items()}
"""Part of a model -> field -> keys that may hold it."""
# A key, or its path in the file.
_KEY = r"([^\W\d]\w*(\.[^\W\d]\w*)?)"
CAPTURE = "capture a step of it instead (hosim import torch package.module:function)"
"""What to do about a model that hosim does not read."""
ALIASES, TOLD, TOWERS, UNBUILT, WORDS = (_TABLE[name] for name in ("aliases", "told", "towers", "unbuilt", "words"))
"""Other names -> families: multimodal models with a decoder, and their ``text_config``; keys of what is known and not
counted -> what they stand for; keys of towers beside the decoder of a multimodal model; families that are not built ->
what they have that no mechanism here has; word for a layer -> what it is: ``full``, ``near`` (to a window), that and to
all (``pooled``) or some (``chosen``) compressed tokens, ``blocks`` that are chosen, ``state``, ``mlp`` or ``moe``."""
ALGORITHMS, METHODS, MODULES, PLAIN = (_TABLE[name] for name in ("algorithms", "methods", "modules", "plain"))
"""Of weights that are kept otherwise than computed: names of ModelOpt -> how; methods that are known; matrix of hosim,
or the part of a layer -> what files call its module; keys of the modules that are kept as computed."""
TIES: dict[str, str] = _TABLE["ties"]
"""Model around a decoder -> what says whether it ties the embedding."""


def is_irrelevant(key: str) -> bool:
    """Tell whether a key changes neither memory nor time."""
    return key in SETS["irrelevant"] or (key.endswith(_ENDINGS) and key not in SETS["structure"])


def _states_size(value: Any, key: str = "") -> bool:
    """Tell whether a value may state a size or a structure: a flag that is on, a number from 1 on, a word, or some."""
    if isinstance(value, (list, dict)):
        return any(map(_states_size, value if isinstance(value, list) else value.values()))
    if isinstance(value, str):
        return not key.endswith(_TEXTS)
    return isinstance(value, (int, float)) and 1 <= abs(value) < inf


class Config:
    """The keys of a file; notes which ones are used, and the origins of figures.

    Parameters
    ----------
    data
        The keys of the decoder in the file; perhaps those of towers (``vision_config.image_size``), which it may read.
    family
        The family that its ``model_type`` names.
    where
        The file, for messages.
    section
        The path of `data` in the file, with a dot behind it; of the whole file, nothing.
    """

    version = VERSION

    def __init__(self, data: Mapping[str, Any], family: Family, where: str, section: str = "") -> None:
        self.data, self.family, self.where, self.own = {**family.unbuilt, **data}, family, where, data
        self.used, self.section = set[str](), section
        self.places = dict[str, str]()  # key that is read -> its path in the file, if not that of the section and it
        for entry in family.inside:
            key, _, prefix = entry.partition("=")
            self.used.add(key)
            inner = data.get(key) or {}
            insist(isinstance(inner, dict), self.where_is(key), "this is an object", repr(inner))
            self.data = {**self.data, **{f"{prefix}{name}": value for name, value in inner.items()}}
            self.places |= {f"{prefix}{name}": f"{section}{key}.{name}" for name in inner}
        # Key that the file lacks -> default that was taken; what is made of other keys -> the key that would state it.
        self.defaults_taken, self.lacks, self.derived = dict[str, Any](), dict[str, str](), list[str]()
        # Field of the workload, its value, the key of it, where that comes from, and its basis: the last one counts.
        self.found: list[tuple[str, Any, str, str, str]] = []
        for condition, entry in family.when.items():
            if all(map(self._holds, condition.split())):
                self.family = Family(**_joined(vars(self.family), entry))
        self.used |= SETS["structure"] if "norm_weights" in self.family.model else set()

    def _holds(self, condition: str) -> bool:
        """Tell whether a key is true, or has the value behind a ``=``."""
        key, _, wanted = condition.partition("=")
        used, value = {*self.used}, self.get(key)
        is_held = str(value).lower() == (wanted or "true")
        says_more = not is_held and value is not True and key in self.data and _states_size(self.data[key], key)
        self.used = used if says_more else self.used  # it is for others to read, or to refuse
        return is_held

    def get(self, *keys: str, path: str = "") -> Any:
        """Return the value of the first key that the file has, or else that the family has; None if neither has one.

        Where a family has a name of its own for a key, that is the first one.
        """
        keys = self._names(keys)
        for key in filter(self.data.__contains__, keys):
            self.used |= {other for other in keys if self.data.get(other, ...) == self.data[key]}
            self.note(path, self.data[key], self.named(key))
            return self.data[key]
        for key in filter(self.family.defaults.__contains__, keys):
            value = self.family.defaults[key]
            if path:  # a file that says that it is of another class has other defaults than these
                must = f"{self.reader} states its sizes: {value} is the default of {self.family.config}, another class"
                fits = not self.reader or self.is_own or type(value) is not int
                insist(fits, self.where_is(key), must, "none", "add it")
                self.defaults_taken[key] = value
            text = f"{VERSION}, {self.family.config}.{key} (config.json has no such key)"
            self.note(path, value, self.named(key), text)
            return value
        return None

    def note(self, path: str, value: object, name: str, text: str = "", basis: str = "quoted") -> None:
        """Note where a field of the workload comes from, if it is one (`path`): from this key, if no text says more."""
        self.found += [(path, value, name, text or f"config.json, {name}", basis)] if path else []

    def forget(self, path: str) -> None:
        """Forget where a field comes from, which the model has not."""
        self.found = [entry for entry in self.found if entry[0] != path]

    def named(self, key: str) -> str:
        """Return the path of a key in the file; of what stands in for one, how that is made of keys."""
        return self.places.get(key, key.removeprefix("whole.") if "." in key else self.section + key)

    def spelt(self, words: str) -> str:
        """Write a sum by the paths of its keys; those that are sums themselves stand in brackets."""
        spelt = re.sub(_KEY, lambda word: f"({path})" if " " in (path := self.path_of(word[0])) else path, words)
        return re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", spelt)

    def _names(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Return what keys may be named, the family's own names first."""
        return (*filter(None, map(self.family.keys.get, keys)), *keys)

    def stated(self, *keys: str) -> str:
        """Return the key of some whose value counts, and use it; nothing if they have none."""
        return "" if self.get(*keys) in (None, "auto") else self._first(keys)

    def _first(self, keys: tuple[str, ...]) -> str:
        names = self._names(keys)
        return next((name for held in (self.data, self.family.defaults) for name in names if name in held), names[0])

    def path_of(self, *keys: str) -> str:
        """Return the path of the first of some keys that the file has, or else the family."""
        return self.named(self._first(keys))

    def where_is(self, *keys: str) -> str:
        """Say where the first of some keys stands that the file has, or else the family."""
        return f"{self.where}, {self.path_of(*keys)}"

    @property
    def reader(self) -> str:
        """The class that reads the file, if it names one."""
        classes = self.data.get("architectures")
        return classes[0] if isinstance(classes, list) and classes and isinstance(classes[0], str) else ""

    @property
    def is_own(self) -> bool:
        """Whether the class that the file names is of the family."""
        usual = self.family.config.removesuffix("Config").removesuffix("Text").lower()
        return bool(usual) and self.reader.lower().startswith(usual)

    def unread(self) -> list[str]:
        """Return the keys that say something, and are neither read nor irrelevant nor implied by the family."""
        left = self.data.keys() - self.used - {*self.family.implied}
        return sorted(key for key in left if self.data[key] and "." not in key and not is_irrelevant(key))

    def sizes(self) -> list[str]:
        """Return the keys that state a size or a structure, and are not read."""
        structure = SETS["structure"]
        passed = {*TOLD} | (structure if self.family.model.get("norm_weights") == "both" else set())
        left = (key for key in self.unread() if key not in passed)
        return [key for key in left if key in structure or _states_size(self.data[key], key)]

    def left(self) -> Iterator[str]:
        """Yield what does not count: keys that are not read, words that no class knows, and parts of the family."""
        yield from (f"{key} ({TOLD[key]})" if key in TOLD else key for key in self.unread())
        for key in sorted(self.own.keys() & SETS["worded"]):
            kind, text = "rotations" if key.startswith("rope") else "activations", json.dumps(self.own[key])
            for word in sorted({*re.findall(r'(?:^|"(?:rope_)?type": )"?([^"{},]+)', text)} - SETS[kind]):
                yield f"{self.named(key)} {word!r:.40} (none of the {kind} that are known; it counts like one)"
        yield from [self.family.uncounted] * bool(self.family.uncounted)

    def check(self) -> None:
        """Refuse values and sizes that the class that reads the file does not take, or not together."""
        usual, kind = self.family.defaults, self.family.config.removesuffix("Config")
        for key in sorted((usual.keys() | SETS["numbers"]) & self.data.keys()):
            value, may_be_null = self.data[key], usual.get(key) is None or kind in _NULLS.get(key, ())
            is_number = (type(usual.get(key)) is int or key in SETS["numbers"]) and key not in SETS["or_words"]
            fits = not is_number or type(value) is list or (type(value) is int and value >= -1)
            must, do = f"this {'is a whole number' if is_number else 'has a value'}", "correct it, or remove the key"
            insist(may_be_null if value is None else fits, self.where_is(key), must, json.dumps(value)[:40], do)
        for words, classes in _RULES.items():
            if kind in classes and self.data.get(self._first((re.findall(r"[a-z]\w+", words)[-1],))) is not None:
                self.made(words.replace("n_routed_experts", self._first(tuple(PARTS["experts"]["routed"]))))

    def view(self, entry: dict[str, Any], data: dict[str, Any]) -> Config:
        """Return what holds of some layers: the family and the keys as these differ; what it notes, this notes."""
        other = copy(self)
        lacking = {name for key, name in entry.get("keys", {}).items() if key not in data and name not in self.data}
        taken = {name: self.family.defaults[name] for name in lacking if name in self.family.defaults}
        self.defaults_taken |= taken
        other.family, other.data = Family(**_joined(vars(self.family), entry)), {**self.data, **taken, **data}
        return other

    def count(self, *keys: str, path: str = "", least: int = 1, derived: int | str | None = None) -> int:
        """Return a whole number; if no key states it `derived`, which may be a sum of other keys (`made`)."""
        value, derived = self.get(*keys, path=path), self.family.usual.get(keys[0]) if derived is None else derived
        if value in (None, "auto") and derived is not None:
            lacks = self.path_of(*keys)
            size = derived if isinstance(derived, int) else self.made(derived, lacks)
            name = self.spelt(derived) if isinstance(derived, str) else lacks
            self.lacks |= {name: lacks} if name != lacks else {}
            self.note(path, size, name, f"config.json, which has no {lacks}: {name}", "derived")
            return size
        value, where = int(value) if type(value) is float and value.is_integer() else value, self.where_is(*keys)
        insist(value is not None, where, "a model has this key", "none", "add it")
        fits = isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**9
        insist(fits, where, f"this is a whole number from {least} to 1,000,000,000", repr(value))
        return int(value)

    def made(self, words: str, lacks: str = "") -> int:
        """Return a sum (`total_of`) of numbers and keys, or of entries of their lists (``key.0``)."""
        try:
            return total_of(words, self._value)
        except FieldError as fault:
            (part, whole), names = fault.path, [*map(self.spelt, fault.path)]
            where = f"{self.where}, {re.findall(_KEY, names[self._first((part,)) not in self.data])[0][0]}"
            must = fault.must[len(part) : -len(whole)].join(names)
            raise ConfigError(where, must, fault.found, f"{fault.do}, or add {lacks}" if lacks else fault.do) from None

    def _value(self, word: str) -> int:
        """Return the value of a key, or an entry of its list, if it has one."""
        key, _, entry = word.partition(".")
        if not entry.isdecimal():
            return self.count(word, least=int(word not in SETS["from_zero"]))
        listed = self.list_of(key, int, int(entry) + 1, "parts") if isinstance(self.get(key), list) else None
        return listed[int(entry)] if listed else self.count(key, least=-1)

    def flag(self, key: str, path: str = "") -> bool:
        """Return whether a key is true; an absent one is not."""
        value = self.get(key, path=path)
        insist(value in (True, False, None), self.where_is(key), "this is true or false", repr(value))
        return bool(value)

    def counts(self, part: str, path: str) -> dict[str, int]:
        """Return the whole numbers of a part (its keys are in `PARTS`) by field, with their origins below `path`."""
        fields = {name: keys for name, keys in PARTS[part].items() if name not in self.family.model}
        return {name: self.count(*keys, path=f"{path}.{name}") for name, keys in fields.items()}

    def list_of(self, key: str, kind: type, length: int | None = None, each: str = "layers") -> list[Any] | None:
        """Return a list of texts or numbers, one for each of some layers or parts; None if the key is absent."""
        values = self.family.defaults.get(key) if self.get(key) is None else self.get(key)
        if values is None:
            return None
        fits = isinstance(values, list) and all(type(value) is kind for value in values)
        insist(fits, self.where_is(key), "this is a list of one kind of value", repr(values))
        over, must = len(values) - (length or len(values)), f"this has an entry for each of {length} {each}"
        is_exact = key in SETS["exact"] and "layer_types" in self.data
        insist(over == 0 or (over > 0 and not is_exact), self.where_is(key), must, str(len(values)))
        return list(values[:length])

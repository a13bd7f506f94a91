"""What every YAML document has in common: strictness, a name, and the origins of its figures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, chain
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from simulator.units import FieldError, closest, in_yaml, nearest, require, would_divide

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A catalogue name: letters, digits, ``_``, ``.`` and ``-``."""

Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""The name of a part of a document; without a dot, because field paths are dotted."""


LONGEST_NAME = 1000
"""Most characters of a name that is none of a catalogue's: of a tensor, an op, a row."""


def flaw(name: str, longest: int = LONGEST_NAME) -> str | None:
    """Say why a text is no name that tables and terminals show as it is; None if it is one.

    Parameters
    ----------
    name
        Of a tensor, an op, a row and the like.
    longest
        How many characters it may have.
    """
    if len(name) > longest:
        return f"one of {len(name):,} characters"
    if not name.isprintable():
        return f"one with a line's end, or another character that is not printed: {name!r}"
    if name.startswith(("=", "+", "-", "@")):
        return f"{name!r}, whose begin a table of other programs takes for a formula"
    return None


def _one_line(text: str) -> str:
    if not text.isprintable():
        raise FieldError("this is one line of printable characters", repr(text), "write it as one line")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""A text of one line."""

Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
"""How many there are of what is only counted, or how wide or long something is: tokens, sequences, elements."""
CountOrNone = Annotated[int, Field(ge=0, le=10**9, strict=True)]
"""The same, or 0."""
Few = Annotated[int, Field(ge=1, le=100_000, strict=True)]
"""How many there are of what is made one by one: experts, blocks that are chosen, channels."""
FewOrNone = Annotated[int, Field(ge=0, le=100_000, strict=True)]
"""The same, or 0."""
Layers = Annotated[int, Field(ge=1, le=10_000, strict=True)]
"""How many layers there are, each of them with many ops."""
MOST_RANKS = 1 << 20
"""Most ranks of a job, and most devices: what is said of each of them still takes seconds."""
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS, strict=True)]
"""How many ranks or devices there are, also along one axis."""
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share in (0, 1]."""


class Part(BaseModel):
    """A frozen piece of a document that refuses unknown keys.

    The JSON Schema of a part says of each key what the docstring of its class says of the field.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True)

    def _check(self) -> None:
        """Refuse what breaks a rule of the whole piece, beyond the types of its fields, by a `FieldError`."""

    def _divides(self, part: str, whole: str) -> None:
        """Refuse a number that does not divide another one of the piece."""
        number, total = getattr(self, part), getattr(self, whole)
        do = would_divide(part, total, number)
        require(total % number == 0, f"{part} divides {whole}", f"{number:,} and {total:,}", part, do=do)

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, data: object) -> object:
        keys = tuple(field.alias or name for name, field in cls.model_fields.items())
        for key in data if isinstance(data, dict) else ():
            if key not in keys and key not in cls.model_fields:
                raise FieldError("only known keys stand here", repr(key), nearest(str(key), keys), (str(key),))
        return data

    @model_validator(mode="after")
    def _keeps_its_rules(self) -> Self:
        self._check()
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        texts = {name: text for base in reversed(cls.__mro__) for name, text in described(base, "Attributes").items()}
        for name, field in cls.model_fields.items():
            if name in texts:
                schema["properties"][field.alias or name]["description"] = texts[name].replace("``", "`")
        schema["description"] = inspect.cleandoc(cls.__doc__ or "").partition("\n\nAttributes\n")[0]
        return reference


def described(documented: object, section: str) -> dict[str, str]:
    """Return what a section of a docstring says of each name, in one line.

    Parameters
    ----------
    documented, section
        A class or a function, and ``Attributes`` or ``Parameters``.
    """
    text = inspect.cleandoc(documented.__doc__ or "").partition(f"{section}\n----------\n")[2]
    texts: dict[str, str] = {}
    for names, about in re.findall(r"^(\S.*)\n((?:(?: .*)?\n?)+)", text, re.MULTILINE):
        texts.update(dict.fromkeys(names.split(", "), " ".join(about.split())))
    return texts


def faults(error: ValidationError, data: object, keys: tuple[str, ...] = ()) -> list[FieldError]:
    """Say in hosim's words what pydantic has to say.

    Parameters
    ----------
    error
        What it raised.
    data
        What it was given.
    keys
        Those that may stand in it, where no part refuses others.

    Returns
    -------
    list
        One fault for each field, with the path that leads to it.
    """
    found: dict[tuple[str, ...], FieldError] = {}
    for item in error.errors(include_url=False):
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # entries of it are wrong, which is told already
        fault = _fault(item, data, keys)
        known = found.setdefault(fault.at, fault)
        if known.must != fault.must:  # the branches of a union
            found[fault.at] = FieldError(f"{known.must}, or {fault.must}", known.found, known.do, known.at)
    return list(found.values())


def _fault(item: ErrorDetails, data: Any, keys: tuple[str, ...]) -> FieldError:
    context, path = item.get("ctx", {}), []
    for part in item["loc"]:  # without the tags of unions
        if part in (range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()):
            data = data[part]
            path.append(str(part))
    error, key = context.get("error"), str(context.get("discriminator") or ("", *item["loc"])[-1])
    if isinstance(error, FieldError):
        return FieldError(error.must, error.found, error.do, (*path, *error.at))
    key = key.strip("_()'")
    if item["type"] == "missing" or (item["type"] == "union_tag_not_found" and isinstance(item["input"], dict)):
        return FieldError(f"the key {key!r} is needed here", "none", "add it", (*path, key))
    if item["type"] == "extra_forbidden":
        return FieldError("only known keys stand here", repr(key), nearest(key, keys), tuple(path))
    shown, must = item["input"], item["msg"][:1].lower() + item["msg"][1:].partition(" or instance of")[0]
    if item["type"] == "union_tag_invalid":
        shown, must = context["tag"], f"{key} should be one of {context['expected_tags']}"
        path.append(key)
    choices = re.findall("'([^']*)'", str(context.get("expected", context.get("expected_tags", ""))))
    do = nearest(str(shown), tuple(choices)) if choices else "correct it"
    return FieldError(must, in_yaml(shown), do, tuple(path))


class Citation(Part):
    """Where a figure comes from, and what the source printed.

    Attributes
    ----------
    text
        The source, in words by which a reader can find it.
    value
        What this source prints, where it is not the figure in use or where sources disagree.
    basis
        What kind of figure it is; ``inferred`` is an analogy with another machine or setting, ``announced`` is said of
        a machine that could not be bought yet.
    confidence
        A: raw log or primary; B: a secondary that quotes a primary, or two that agree; C: summary, forum, analyst;
        D: derived or inferred.
    note
        What a reader should know before trusting it.
    """

    text: str = Field(alias="from", min_length=1)
    value: str | None = None
    basis: Literal["peak", "measured", "quoted", "floor", "derived", "inferred", "chosen", "announced"] | None = None
    confidence: Literal["A", "B", "C", "D"] | None = None
    note: str | None = None


Citations = Annotated[tuple[Citation, ...], Field(min_length=1)]
Reason = Annotated[str, Field(min_length=1)]


class Fit(Part):
    """Which printed figure a number was fitted to; nothing that uses the number predicts that figure.

    Attributes
    ----------
    parameter
        What was fitted, in a word or two; fields of one parameter have one value, and count once.
    figure
        Name of the printed figure, as expectations name it.
    why
        How it was fitted.
    """

    parameter: str = Field(min_length=1)
    figure: Key
    why: str = Field(min_length=1)


class Document(Part):
    """A document that people write; each of its figures is cited, assumed or fitted, or its author's own.

    Attributes
    ----------
    schema_
        Kind and version of the document.
    name
        Its name in the catalogue.
    title
        One line for people.
    sources
        Field path (``links.d2h.bandwidth``, or a prefix of it) -> citations; conflicting figures are all listed.
    assumed
        Field path -> why this figure was assumed.
    fitted
        Field path -> which printed figure this one was fitted to, and how.
    origin
        ``mine``: figures of which nothing is said are the author's own. They are in any case; what hosim ships says
        where each figure is from, and so does what `hosim check --strict` passes.
    """

    name: Name
    title: Line = ""
    origin: Literal["mine"] | None = None
    sources: dict[str, Citations] = {}
    assumed: dict[str, Reason] = {}
    fitted: dict[str, Fit] = {}

    def origin_of(self, path: str) -> str:
        """Say whether the figure at `path` is ``cited``, ``assumed`` or ``fitted``; ``mine`` if nothing is said of it.

        The entry that names most of the path decides; of several with the same path ``fitted``, then ``assumed``.
        """
        entry = self.entry_of(path)
        return _MINE if entry is None else {"sources": "cited"}.get(entry[0], entry[0])

    def entry_of(self, path: str) -> tuple[str, str | Fit | tuple[Citation, ...]] | None:
        """Find the table (``sources``, ``assumed``, ``fitted``) and the entry that decide the origin of `path`."""
        for prefix in reversed(with_prefixes([path])):
            for table in ("fitted", "assumed", "sources"):
                if prefix in getattr(self, table):
                    return table, getattr(self, table)[prefix]
        return None

    def figures(self) -> Iterator[str]:
        """Field paths of the numbers that the document states, in its order."""
        return (path for path, value in _leaves(self) if isinstance(value, int | float) and not isinstance(value, bool))

    def origins(self) -> dict[str, int]:
        """Count its figures by origin: ``cited``, ``assumed``, ``fitted``, ``mine``."""
        kinds = [self.origin_of(path) for path in self.figures()]
        return {kind: kinds.count(kind) for kind in ("cited", "assumed", "fitted", _MINE)}

    def field_errors(self, *, is_strict: bool = True) -> Iterator[FieldError]:
        """What is wrong with its origins: entries that name nothing stated, and figures without one.

        Parameters
        ----------
        is_strict
            Whether each figure needs one.
        """
        for path in self.figures() if is_strict else ():
            if self.origin_of(path) == _MINE:
                must = "each figure has an origin under sources, assumed or fitted"
                do = f"cite {path!r} in sources, or say in assumed why it was chosen"
                yield FieldError(must, "none", do, self._at(path))
        stated = self._stated()
        for table in ("sources", "assumed", "fitted"):
            for path in getattr(self, table):
                if path not in stated:
                    must, close = "an entry here names a field that the document states", closest(path, stated)
                    do = f"did you mean {close!r}?" if close else "correct the path, or remove the entry"
                    yield FieldError(must, repr(path), do, (table, path))

    def _at(self, path: str) -> tuple[str, ...]:
        """Keys that lead to a figure."""
        return tuple(path.split("."))

    def _stated(self) -> tuple[str, ...]:
        """Paths of all fields that an origin may be given for."""
        return with_prefixes(path for path, _ in _leaves(self))


def with_prefixes(paths: Iterable[str]) -> tuple[str, ...]:
    """Dotted paths, and the paths of all that they lie in."""
    prefixes = (accumulate(path.split("."), "{}.{}".format) for path in paths)
    return tuple(dict.fromkeys(chain.from_iterable(prefixes)))


_MINE = "mine"
ABOUT_ITSELF = ("schema", "schema_", "name", "title", "origin", "sources", "assumed", "fitted")
"""Keys of a document that tell of itself."""


def _leaves(value: object, *path: str) -> Iterator[tuple[str, object]]:
    """Walk what was stated (not what was left at its default): path of keys as written -> value."""
    if isinstance(value, Part):
        fields = type(value).model_fields
        for name in fields:
            if name in value.model_fields_set and not (isinstance(value, Document) and name in ABOUT_ITSELF):
                yield from _leaves(getattr(value, name), *path, fields[name].alias or name)
    elif isinstance(value, Mapping | list | tuple):
        for key, entry in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(entry, *path, str(key))
    else:
        yield ".".join(path), value

"""The base of every YAML document: strictness, a name, and the origins of its figures."""

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
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simulator import retired
from simulator.units import FieldError, did_you_mean, nearest, parse, require, unit_of, would_divide

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A catalogue name: letters, digits, ``_``, ``.`` and ``-``."""
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""The name of a part of a document; without a dot, because field paths are dotted."""


LONGEST_NAME = 1000
"""Most characters of a name of a tensor, an op or a row."""


def flaw(name: str, longest: int = LONGEST_NAME) -> str | None:
    """Say why tables or terminals would not show a name as it is; None if they would.

    Parameters
    ----------
    name
        The name of a tensor, an op, a row and the like.
    longest
        Most characters that it may have.
    """
    if len(name) > longest:
        return f"one of {len(name):,} characters"
    if not name.isprintable():
        return f"one with a line break, or another unprintable character: {name!r}"
    if name.startswith(("=", "+", "-", "@")):
        return f"{name!r}, which spreadsheets take for a formula"
    return None


def _one_line(text: str) -> str:
    require(text.isprintable(), "this is one line of printable characters", repr(text), do="write it as one line")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
"""A text of one line."""


def _is_class(name: str) -> str:
    require(name != "default", "a figure is of a class of ops", "'default'", do="set the figure for all of them")
    return name


OpClass = Annotated[Key, AfterValidator(_is_class)]
"""A class of ops where what counts for all others has a field of its own."""

Count = Annotated[int, Field(ge=1, le=10**9, strict=True)]
"""A number of things of which none has an object of its own: tokens, sequences, elements."""
CountOrNone = Annotated[int, Field(ge=0, le=10**9, strict=True)]
"""The same, or 0."""
Few = Annotated[int, Field(ge=1, le=100_000, strict=True)]
"""A number of things that each have an object of their own: experts, selected blocks, channels."""
FewOrNone = Annotated[int, Field(ge=0, le=100_000, strict=True)]
"""The same, or 0."""
Layers = Annotated[int, Field(ge=1, le=10_000, strict=True)]
"""A number of layers, each with many ops."""
MOST_RANKS = 1 << 20
"""Most ranks of a job, and most devices: writing a line about each still takes only seconds."""
Ranks = Annotated[int, Field(ge=1, le=MOST_RANKS, strict=True)]
"""A number of ranks or devices, in all or along one axis."""
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
"""A share in (0, 1]."""


class Part(BaseModel):
    """A frozen piece of a document that refuses unknown keys.

    The docstring of a part's class describes each key in its JSON Schema.
    """

    # Built when it is first read: a command reads few kinds of parts, and imports all.
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, serialize_by_alias=True, defer_build=True
    )

    def _check(self) -> None:
        """Check rules beyond the types of single fields; raise a `FieldError` if one is broken."""

    def _divides(self, part: str, whole: str) -> None:
        """Refuse a field that does not divide another one."""
        divisor, total = getattr(self, part), getattr(self, whole)
        must, do = f"{part} divides {whole}", would_divide(part, total, divisor)
        require(total % divisor == 0, must, f"{divisor:,} and {total:,}", part, do=do)

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, data: object) -> object:
        keys = tuple(field.alias or name for name, field in cls.model_fields.items())
        if isinstance(data, str) and "kind" in keys:  # such as ``optimizer: adamw``
            return {"kind": data}
        for key in data if isinstance(data, dict) else ():
            if key not in keys and key not in cls.model_fields:
                do = retired.KEYS.get(cls.__name__, {}).get(key) or nearest(str(key), keys)
                raise FieldError("only known keys stand here", repr(key), do, (str(key),))
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
    """Return the descriptions in a section of a docstring, each as one line, by name.

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


class Citation(Part):
    """The source of a figure, and the value that it prints.

    Attributes
    ----------
    text
        The source, in words by which a reader can find it.
    value
        The value that this source prints, if it differs from the figure in use or if sources disagree.
    range
        The least and the largest value that this source prints, with units as the figure has them (``[2 us, 7 us]``),
        for `hosim sweep --uncertainty`. The figure lies in it.
    basis
        The kind of figure; ``inferred``: by analogy with another machine or setting; ``announced``: for a machine that
        was not yet on sale.
    confidence
        A: raw log or primary source; B: a secondary source that quotes a primary one, or two that agree; C: summary,
        forum, analyst; D: derived or inferred.
    note
        A caveat for readers.
    """

    text: str = Field(alias="from", min_length=1)
    value: str | None = None
    range: tuple[str | float, str | float] | None = None
    basis: Literal["peak", "measured", "quoted", "floor", "derived", "inferred", "chosen", "announced"] | None = None
    confidence: Literal["A", "B", "C", "D"] | None = None
    note: str | None = None


Citations = Annotated[tuple[Citation, ...], Field(min_length=1)]
Reason = Annotated[str, Field(min_length=1)]


class Fit(Part):
    """The printed figure that a number was fitted to; nothing that uses the number predicts that figure.

    Attributes
    ----------
    parameter
        Name of the fitted parameter, in a word or two; fields of the same parameter have one value and count once.
    figure
        Name of the printed figure, as in expectations.
    why
        How it was fitted.
    """

    parameter: str = Field(min_length=1)
    figure: Key
    why: str = Field(min_length=1)


class Document(Part):
    """A document written by people; each of its figures is cited, assumed, fitted, or its author's own.

    Attributes
    ----------
    schema_
        Kind and version of the document.
    name
        Its name in the catalogue.
    title
        One line for people.
    sources
        Field path (``links.d2h.bandwidth``, or a prefix of it) -> citations; all are listed where sources disagree.
    assumed
        Field path -> why this figure was assumed.
    fitted
        Field path -> the printed figure that it was fitted to, and how.
    origin
        ``mine``: figures without an origin are the author's own, as they are without this key, too. `hosim check
        --strict` wants an origin for every figure, as shipped documents have.
    """

    name: Name
    title: Line = ""
    origin: Literal["mine"] | None = None
    sources: dict[str, Citations] = {}
    assumed: dict[str, Reason] = {}
    fitted: dict[str, Fit] = {}

    @property
    def heading(self) -> str:
        """The title, or the name if there is no title."""
        return self.title or self.name

    @property
    def documents(self) -> tuple[Document, ...]:
        """The document, and those inside it."""
        return (self,)

    def origin_of(self, path: str) -> str:
        """Return the origin of the figure at `path`: ``cited``, ``assumed`` or ``fitted``; ``mine`` without an entry.

        The entry with the longest matching prefix decides; among equals ``fitted`` comes first, then ``assumed``.
        """
        entry = self.entry_of(path)
        return _MINE if entry is None else {"sources": "cited"}.get(entry[0], entry[0])

    def entry_of(self, path: str) -> tuple[str, str | Fit | tuple[Citation, ...]] | None:
        """Find the table (``sources``, ``assumed``, ``fitted``) and the entry that give the origin of `path`."""
        for prefix in reversed(with_prefixes([path])):
            for table in ("fitted", "assumed", "sources"):
                if prefix in getattr(self, table):
                    return table, getattr(self, table)[prefix]
        return None

    def figures(self) -> Iterator[str]:
        """Iterate over the field paths of the numbers that the document states, in document order."""
        return (path for path, value in _leaves(self) if isinstance(value, int | float) and not isinstance(value, bool))

    def origins(self) -> dict[str, int]:
        """Count its figures by origin: ``cited``, ``assumed``, ``fitted``, ``mine``."""
        kinds = [self.origin_of(path) for path in self.figures()]
        return {kind: kinds.count(kind) for kind in ("cited", "assumed", "fitted", _MINE)}

    def field_errors(self, *, is_strict: bool = True) -> Iterator[FieldError]:
        """Iterate over faults of origins: figures without one, entries of no stated field, ranges beside their figure.

        Parameters
        ----------
        is_strict
            Whether each figure needs an origin.
        """
        for path in self.figures() if is_strict else ():
            if self.origin_of(path) == _MINE:
                must = "each figure has an origin under sources, assumed or fitted"
                do = f"cite {path!r} in sources, or say in assumed why it was chosen"
                yield FieldError(must, "none", do, self._keys(path))
        stated = self._stated()
        for table in ("sources", "assumed", "fitted"):
            for path in getattr(self, table):
                if path not in stated:
                    must = "an entry here names a field that the document states"
                    do = did_you_mean(path, stated, "correct the path, or remove the entry")
                    yield FieldError(must, repr(path), do, (table, path))
        ranged = {path: cited for path, cited in self.sources.items() if any(citation.range for citation in cited)}
        data = self.model_dump(mode="json", by_alias=True) if ranged else {}
        for path, cited in ranged.items():
            figure = inside(data, self._keys(path))
            for index, ends in ((index, citation.range) for index, citation in enumerate(cited) if citation.range):
                units, values = zip(*map(amount, (ends[0], figure, ends[1])), strict=True)
                is_number = len({*units}) == 1 and all(isinstance(value, int | float) for value in values)
                if not (is_number and [*values] == sorted(values)):
                    must, do = "a range goes from a value to a larger one, around its figure", "correct its ends"
                    yield FieldError(must, f"{ends[0]} to {ends[1]}", do, ("sources", path, str(index), "range"))

    def _keys(self, path: str) -> tuple[str, ...]:
        """Split the path of a figure into keys."""
        return tuple(path.split("."))

    def _stated(self) -> tuple[str, ...]:
        """Return the paths of all fields that may have an origin."""
        return with_prefixes(path for path, _ in _leaves(self))


def with_prefixes(paths: Iterable[str]) -> tuple[str, ...]:
    """Return dotted paths, each after the paths of everything that contains it."""
    prefixes = (accumulate(path.split("."), "{}.{}".format) for path in paths)
    return tuple(dict.fromkeys(chain.from_iterable(prefixes)))


def inside(data: Any, path: Iterable[str]) -> Any:
    """Return what stands at a path in nested lists and mappings; None if there is nothing."""
    for key in path:
        if isinstance(data, list) and key.isdecimal():
            data = dict(enumerate(data)).get(int(key))
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data


def amount(value: object) -> tuple[str | None, Any]:
    """Return the unit that a stated value has inside, if it is a quantity, and its number there; else the value."""
    unit = unit_of(value)
    return unit, value if unit is None else parse(value, unit)


_MINE = "mine"
ORIGINS = ("fitted", "assumed", "sources")
"""The tables of origins."""
ABOUT_ITSELF = ("schema", "schema_", "name", "title", "origin", "sources", "assumed", "fitted")
"""Keys that are about the document, not about what it describes."""


def _leaves(value: object, *path: str) -> Iterator[tuple[str, object]]:
    """Iterate over the values that the document states (defaults excluded), each with its path."""
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

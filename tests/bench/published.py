"""The form of a record: a published measurement, every figure of which is a row (``tests/bench/records/*.yaml``)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

RECORDS = Path(__file__).parent / "records"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as quick where it is there
Pace = Literal["pinned copies", "framework copies", "decode kernels", "prefill kernels", "training kernels",
               "host compute", "serving engine", "memory"]  # fmt: skip
TIMES = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
SIZES = {f"{prefix}B": 1000**n for n, prefix in enumerate(("", "k", "M", "G", "T"))}
SIZES |= {f"{prefix}iB": 1024**n for n, prefix in enumerate("KMGT", 1)}
PRINTED = re.compile(r"[0-9]*\.?[0-9]+ ([A-Za-z%]+(?:/s)?)")


class Strict(BaseModel):
    """A part of a record file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Part(Strict):
    """A figure of a row of a scenario: of all of it, of one of its points, or of a wave or a round of requests."""

    scenario: str
    row: str
    figure: str = "step_ns"
    times: float = 1
    point: int | None = None
    set_: dict[str, Any] = Field(default={}, alias="set")

    @property
    def key(self) -> Key:
        """What parts of one run share."""
        return self.scenario, json.dumps(self.set_), self.point is not None


Key = tuple[str, str, bool]
ONE_PART = {"scenario", "row", "figure", "times", "point", "set"}


class Row(Strict):
    """A printed figure; the sum of its parts predicts it."""

    case: str
    printed: str
    pace: Pace
    is_: Literal["predicted", "calibrates", "missing"] = Field(alias="is")
    parts: tuple[Part, ...] = ()
    tokens: float | None = None
    first: float | None = None
    why: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_one_part(cls, data: dict[str, Any]) -> dict[str, Any]:
        part = {key: data[key] for key in ONE_PART & data.keys()}
        return {key: data[key] for key in data.keys() - ONE_PART} | ({"parts": [part]} if part else {})

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        unit = match[1] if (match := PRINTED.fullmatch(self.printed)) else ""
        rules = {
            "printed is a number, a space and a unit, as in 3 ms, 2 GB, 5 tokens/s":
                unit in TIMES or unit in SIZES or unit.endswith("/s") or self.is_ == "missing",
            "a predicted row names a scenario, a missing one none":
                self.is_ == "calibrates" or bool(self.parts) == (self.is_ == "predicted"),
            "why says what is missing, calibrated or changed":
                self.why or (self.is_ == "predicted" and self.first is None),
            "tokens are of a rate": self.tokens is None or unit.endswith("/s"),
            "the class memory is of sizes, and only it":
                self.is_ == "missing" or (unit in SIZES) == (self.pace == "memory"),
        }  # fmt: skip
        if broken := [rule for rule, holds in rules.items() if not holds]:
            raise ValueError(f"{self.case}: {'; '.join(broken)}")
        return self

    @property
    def number(self) -> float:
        return float(self.printed.split()[0])

    @property
    def unit(self) -> str:
        return self.printed.split()[1]

    def in_unit(self, total: float) -> float:
        """Bring what is predicted [ns, B, or by second] into the unit that is printed."""
        if not self.unit.endswith("/s"):
            return total / (TIMES | SIZES)[self.unit]
        return (total if self.tokens is None else self.tokens * 1e9 / total) / SIZES.get(self.unit[:-2], 1)


class Record(Strict):
    """A published measurement."""

    record: str
    title: str
    source: str
    date: Any
    publisher: str
    assumptions: tuple[str, ...] = ()
    shared: dict[str, Any] = {}
    """What rows set alike, for YAML's own references (``&``, ``*``, ``<<``)."""
    rows: tuple[Row, ...]

    @model_validator(mode="after")
    def _has_each_case_once(self) -> Self:
        cases = [row.case for row in self.rows]
        if twice := {case for case in cases if cases.count(case) > 1}:
            raise ValueError(f"a case has one row, found more of {', '.join(sorted(twice))}")
        return self


class Found(NamedTuple):
    """A row beside what is predicted of it, in the unit that is printed."""

    record: Record
    row: Row
    obtained: float

    @property
    def error(self) -> float:
        """How far the prediction is from the printed figure, as a share of it."""
        return self.obtained / self.row.number - 1

    @property
    def ratio(self) -> float:
        """Real over predicted: of times (also where a rate is printed), or of sizes."""
        real, predicted = self.row.number, self.obtained
        if self.row.unit.endswith("/s"):
            real, predicted = predicted, real
        return real / predicted if predicted else float("inf")


def read(path: Path) -> Record:
    """Read a record file; all faults are told, with their place."""
    try:
        record = Record.model_validate(yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER))
    except ValidationError as error:
        faults = [f"{path.name}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise SystemExit("\n".join(faults)) from None
    except (OSError, yaml.YAMLError) as error:
        raise SystemExit(f"{path.name}: {error}") from None
    if record.record != path.stem:
        raise SystemExit(f"{path.name}: record: it is the stem of the file, found {record.record!r}")
    return record


def records(only: Sequence[str] = ()) -> list[Record]:
    """Read all records, or those named."""
    return [read(RECORDS / f"{name}.yaml") for name in only or sorted(path.stem for path in RECORDS.glob("*.yaml"))]

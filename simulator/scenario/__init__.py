"""The scenario: a workload on a machine under some policies, and what is expected of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, StrictBool, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simulator.document import Count, Document, Part, with_prefixes
from simulator.scenario.claim import LIMITS, Bound, Claim, Expectation, Kind, Label, Unstated, label_of
from simulator.scenario.slo import Slo
from simulator.units import Bytes, exact, in_field, nearest, parse, ratio, require, unit_of

__all__ = [
    "LIMITS", "AllocatorKind", "Claim", "DrawsOrigin", "Expectation", "Keep", "Kind", "Largest", "Least",
    "PolicyChoice", "Scenario", "Slo", "Switches", "Unstated", "label_of",
]  # fmt: skip

Keep = Literal["kept", "none"]
"""Whether a run keeps its trace."""


AllocatorKind = Literal["ideal", "best_fit", "caching", "fixed"]
"""How places of the compute tier get addresses."""


class PolicyChoice(Part):
    """One row of the table: a policy with its options.

    Attributes
    ----------
    policy
        Name of the policy, or of a ``hosim-plan/1`` file (a value that ends in ``.jsonl`` or ``.jsonl.gz``), or of a
        ``residency-trace/1`` whose schedule is replayed (``.json``). A ``*`` in it stands for the name of a graph, in a
        job of several that have a plan each.
    label
        Name of the row; default: the policy's name, or the stem of the plan's file.
    options
        Options of the policy.
    alone
        Whether it plans as if no other rank used what ranks share; the row shows what that costs.
    staggered
        Whether ranks that share a link may begin in turn; they do if the step is then shorter.
    allocator
        How places of the compute tier get addresses: ``ideal`` counts bytes alone; ``best_fit`` gives out the smallest
        hole of an address space that suffices; ``caching`` cuts blocks from segments that it keeps, as PyTorch does;
        ``fixed`` chooses offsets before the run, from a plan that is made before it.
    set_
        Changes to the hardware for this row alone, after all others: ``{links.*.bandwidth: 40 GB/s}``. Their origins
        stand in the scenario, as those of its own ``set``.
    """

    policy: Annotated[str, Field(min_length=1)]
    label: Label = ""
    options: dict[str, Any] = {}
    alone: StrictBool = False
    staggered: StrictBool = False
    allocator: AllocatorKind = "ideal"
    set_: dict[str, Any] = Field({}, alias="set")

    @property
    def row(self) -> str:
        """Name of the row."""
        return self.label or (PurePath(self.policy).name.split(".json")[0] if self.is_file else self.policy)

    @property
    def is_file(self) -> bool:
        """Whether the policy is a plan from a file."""
        return self.policy.endswith((".jsonl", ".jsonl.gz", ".json"))

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, data: Any) -> Any:
        return {"policy": data} if isinstance(data, str) else data

    def _check(self) -> None:
        label_of(self.row)
        must = "turns are for a policy that knows what ranks share"
        do = "drop staggered, or name a policy without alone"
        knows, found = not (self.alone or self.is_file), "alone: true" if self.alone else f"the plan {self.policy!r}"
        require(knows or not self.staggered, must, found, "staggered", do=do)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Let editors accept a bare name."""
        return {"anyOf": [{"type": "string"}, super().__get_pydantic_json_schema__(core, handler)]}


class DrawsOrigin(Part):
    """Where it comes from which candidates of dynamic reads are chosen: a distribution, or a file.

    Attributes
    ----------
    distribution
        ``uniform``: all are equally likely. ``zipf``: the r-th most likely of a layer has a share like r to the power
        of minus `skew`; which candidate that is, is drawn for each layer.
    skew
        How unequal the shares of ``zipf`` are: see `distribution`; ``uniform`` has none.
    stickiness
        With this probability each choice of a sample is kept from the step before.
    file
        In place of all that a ``.csv``, relative to the scenario: of shares, with the columns ``layer``, ``expert`` and
        ``share``; or of what was chosen, with the columns ``step``, ``op`` and ``chosen``.
    """

    distribution: Literal["uniform", "zipf"] = "uniform"
    skew: Annotated[float, Field(gt=0, le=4)] = 1.1
    stickiness: Annotated[float, Field(ge=0, le=1)] = 0.0
    file: str | None = None

    def _check(self) -> None:
        others = sorted(self.model_fields_set - {"file"})
        must, do = "draws come from a file or from a distribution", "leave one of the two out"
        require(self.file is None or not others, must, f"file and {''.join(others[:1])}", "file", do=do)
        must, do = "a skew is of the distribution zipf", "write distribution: zipf, or remove skew"
        require(self.distribution == "zipf" or "skew" not in others, must, "skew with uniform", "skew", do=do)


class Switches(Part):
    """Modelling choices about the machine; recorded in the result.

    Attributes
    ----------
    copies_wait_for
        A copy becomes eligible when the last compute issued before it has started (``start``), or ended (``end``).
    hbm_contention
        Whether copies, and what collectives send and receive, take bandwidth of the compute tier from memory-bound
        kernels, and these from them.
    collectives
        Those of each group run on a stream of their own (``own_stream``), beside computes; or all in line with the
        computes (``compute_stream``).
    """

    copies_wait_for: Literal["start", "end"] = "start"
    hbm_contention: StrictBool = False
    collectives: Literal["own_stream", "compute_stream"] = "own_stream"


COMPUTE = "compute"
"""In place of a row: what all computes take."""


class Largest(Part):
    """The question up to which value of a field a row still fits, and is not much slower than another one.

    Attributes
    ----------
    field
        Field of the workload, such as ``sequence`` or ``batch``; a dotted path names one further down. Under ``least``
        the field path of a figure of the machine, such as ``tiers.hbm.capacity`` or ``links.*.bandwidth``.
    at_most
        The largest value that is tried; under ``least`` with its unit (``200 GB/s``), as all that is tried; or a count.
    at_least
        The smallest value that is tried, if it is a multiple.
    multiple_of
        Only multiples of this are tried; under ``least``, if nothing is said, of 100 MB, or 100 MB/s.
    over
        Label of the row whose step is what a step is held against: with the same value, or under ``least`` with the
        largest one that is tried; or ``compute``: the time of all computes.
    slowdown
        How many times as long as that a step may be, such as ``[1.01x, 1.25x, inf]``; for each there is an answer.
        Default: any.
    """

    direction: ClassVar[str] = "largest"
    sign: ClassVar[int] = 1
    """Times a value: the more, the harder it is to fit."""

    field: Annotated[str, Field(min_length=1)]
    at_most: Count
    at_least: Count = 1
    multiple_of: Count = 1
    over: Label = COMPUTE
    slowdown: tuple[Bound, ...] = ()

    @property
    def column(self) -> str:
        """The column that holds the answer."""
        return f"{self.direction}_{self.field}"

    @property
    def limits(self) -> tuple[float, ...]:
        """How many times as long a step may be, for each answer; ``inf`` if it may be any."""
        return tuple(map(ratio, self.slowdown)) or (math.inf,)

    def within(self, limit: float) -> str:
        """Say how long a step may be: one of the `limits`."""
        return "any step" if limit == math.inf else f"{limit:g}x {self.over}"

    def columns(self, tier: str) -> dict[str, tuple[float, str]]:
        """Columns that the summary of a row gets -> of which answer they are, and the column there.

        Parameters
        ----------
        tier
            The compute tier.
        """
        found = {}
        for limit in self.limits:
            at = f"at_{limit:g}x" if limit < math.inf else f"at_{self.direction}"
            found[self.column if limit == math.inf else f"{at}_{self.column}"] = (limit, self.column)
            found |= {f"{at}_{own}": (limit, own) for own in ("step_ns", "slowdown", f"peak_{tier}_bytes")}
        return found

    @property
    def values(self) -> range:
        """All values that may be tried, in order."""
        least, most, step = map(self._whole, ("at_least", "at_most", "multiple_of"))
        return range(-(-least // step) * step, most + 1, step)

    @property
    def unit(self) -> str | None:
        """Unit of what is searched; None of a count."""
        return None

    def _whole(self, key: str) -> int:
        return int(getattr(self, key))

    def written(self, value: int | None) -> str:
        """Write a value for people; nothing for none."""
        return "" if value is None else f"{value:,}" if self.unit is None else exact(value, self.unit)

    def _check(self) -> None:
        must = f"at_most is at least {self.written(self.values.start)}, the least multiple that is tried"
        do = "raise at_most, or lower multiple_of"
        require(self.values, must, self.written(self._whole("at_most")), "at_most", do=do)
        with in_field("slowdown"):
            must, shortest = "a step is held to more than 0x of another one", min(self.limits)
        require(shortest > 0, must, f"{shortest:g}x", "slowdown", do="write such as 1.01x")


_STEP = {"B": 10**8, "B/s": 10**8}
"""Unit -> only multiples of this are tried, if nothing is said."""


class Least(Largest):
    """The question down to which value of a figure of the machine a row still fits, asked like `Largest`."""

    direction: ClassVar[str] = "least"
    sign: ClassVar[int] = -1
    at_most: str | Count  # type: ignore[assignment]
    at_least: str | Count = 0  # type: ignore[assignment]
    multiple_of: str | Count = 0  # type: ignore[assignment]

    @property
    def unit(self) -> str | None:
        """Unit of what is searched; None of a count."""
        return unit_of(self.at_most)

    def _check(self) -> None:
        super()._check()
        is_machines, do = not self.field.startswith(("workload.", "scenario.")), "ask hosim largest for such fields"
        require(is_machines, "the least value is of the machine", self.field, "field", do=do)

    def _whole(self, key: str) -> int:
        stated, usual = getattr(self, key), _STEP.get(self.unit or "", 1) if key == "multiple_of" else 1
        if isinstance(stated, int) and (self.unit is None or not stated):
            return stated or usual
        with in_field(key):
            whole = parse(stated, self.unit or "B")  # a number without a unit is none
            require(1 <= whole < math.inf, "what is tried is at least 1 and has an end", repr(stated), do="correct it")
        return int(whole)


class Scenario(Document):
    """A workload on a machine under some policies.

    Attributes
    ----------
    hardware
        The machine: a name in the catalogue, or a path that ends in ``.yaml``, relative to this document.
    workload
        What runs on it: a name or a path, as of `hardware`.
    set_
        Changes to the hardware: field path -> value (``links.d2h.bandwidth: 40 GB/s``).
    homes
        Tensor kind, or shell pattern of tensor names -> tier, or ``free`` (the policy chooses). The last match wins.
        Default: persistent tensors in the compute tier, all else free. An output that is given another tier than that
        has room there from the start, and ends each step there.
    budget_bytes
        What may be used of the compute tier [B]; default: its capacity less what is reserved.
    policies
        Rows of the table. A bare name stands for the policy with its default options.
    fold
        Whether ranks that run the same stand for one another, which changes no time: ``auto`` if nothing tells them
        apart, ``never``, or ``always``, which is an error if something does.
    trace
        ``kept``, or ``none``: what happens is checked and counted as it happens, and then forgotten, so that memory
        does not grow with the steps of a run. The numbers are the same; pictures, tables and the plans of runtimes
        need a trace.
    scaling
        Workload field -> its value at each point of a scaling curve, such as ``parallel.data: [8, 16, 32]``; fields of
        one point are set together. `hosim scaling` runs all points, everything else the workload as it stands.
    largest
        Up to which value of a field of the workload each row still fits is searched: column ``largest_<field>``.
    least
        Down to which value of a field of the machine it does: with ``tiers.hbm.capacity``, what memory is enough.
    draws
        What is chosen of dynamic reads, step by step: a distribution, or a file. Policies may know how likely a
        candidate is, and not what is chosen before it is revealed.
    seed
        What all that is drawn begins with.
    kv_tiers
        For `hosim serve`: tiers that keep the KV blocks of sequences that have left, from the compute tier down, each
        with the room [B] for that, or null for what is there. Of the compute tier the room is that of sequences that
        run as well. Default: the compute tier alone.
    slo
        For `hosim serve`: what latencies are asked for; requests that meet all of them count as goodput.
    switches
        Modelling choices about the machine.
    expect
        What must hold of the rows; `hosim run` ends with exit code 1 if something does not.
    claim
        The published sentence that this scenario puts to the test.
    """

    schema_: Literal["hosim/scenario/1"] = Field("hosim/scenario/1", alias="schema")
    hardware: str
    workload: str
    set_: dict[str, Any] = Field({}, alias="set")
    homes: dict[str, str] = {}
    budget_bytes: Bytes | None = Field(None, alias="budget")
    policies: tuple[PolicyChoice, ...] = Field(min_length=1)
    fold: Literal["auto", "never", "always"] = "auto"
    trace: Keep = "kept"
    scaling: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = {}
    largest: Largest | None = None
    least: Least | None = None
    draws: DrawsOrigin = DrawsOrigin()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    kv_tiers: dict[str, Bytes | None] = {}
    slo: Slo | None = None
    switches: Switches = Switches()
    expect: tuple[Expectation, ...] = ()
    claim: Claim | None = None

    @property
    def question(self) -> Largest | None:
        """What is searched, if anything."""
        return self.least or self.largest

    def figures(self) -> Iterator[str]:
        """Field paths of the hardware that the scenario or one of its rows sets."""
        yield from dict.fromkeys([*self.set_, *(path for choice in self.policies for path in choice.set_)])

    def _at(self, path: str) -> tuple[str, ...]:
        if path in self.set_:
            return "set", path
        row = next(index for index, choice in enumerate(self.policies) if path in choice.set_)
        return "policies", str(row), "set", path

    def _stated(self) -> tuple[str, ...]:
        return (*with_prefixes(self.figures()), *super()._stated())

    def _check(self) -> None:
        for key, values in self.scaling.items():
            first, points = next((name, len(listed)) for name, listed in self.scaling.items())
            must = "each field of scaling has a value at each point"
            found = f"{len(values)} here and {points} at {first}"
            require(len(values) == points, must, found, "scaling", key, do="list as many values everywhere")
        figures = [one.figure for one in self.expect if one.figure]
        for figure in self.claim.selects if self.claim else ():
            must, do = "what selects is a printed figure of an expectation", nearest(figure, tuple(figures))
            require(figure in figures, must, repr(figure), "claim", "selects", do=do)
        must, do = "a scenario searches one thing", "leave one of the two out"
        require(not (self.largest and self.least), must, "largest and least", "least", do=do)
        rows = [choice.row for choice in self.policies]
        for index, row in enumerate(rows):
            must, do = "each row of the table has a label of its own", "give one of them another label"
            require(row not in rows[:index], must, f"{row!r} twice", "policies", str(index), do=do)
        for index, expectation in enumerate(self.expect):
            at = ("expect", str(index))
            for key, named in expectation.rows.items():
                must = "an expectation names a row of policies"
                require(named in rows, must, repr(named), *at, key, do=nearest(named, tuple(rows)))
            is_named = not self.claim or expectation.printed is None or expectation.figure is not None
            must = "a printed figure that puts a claim to the test has a name"
            do = "add figure: a name that every scenario uses for it, such as step_at_40gbps"
            require(is_named, must, "none", *at, "figure", do=do)

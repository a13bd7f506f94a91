"""The scenario: a workload on a machine under some policies, and what is expected of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, GetJsonSchemaHandler, StrictBool, Tag, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from simulator.document import Count, Document, Part, with_prefixes
from simulator.scenario.claim import LIMITS, Claim, Expectation, Kind, Label, label_of
from simulator.scenario.question import BOUNDS, COMPUTE, FASTEST, UNMOVED, Frontier, Layouts, Question
from simulator.scenario.study import Values
from simulator.units import Bytes, Nanoseconds, named_in, require

__all__ = [
    "LIMITS", "AllocatorKind", "Claim", "DrawsOrigin", "Expectation", "Frontier", "Kind", "KvTier", "Layouts",
    "PolicyChoice", "Question", "Scenario", "Slo", "Switches", "label_of",
]  # fmt: skip

AllocatorKind = Literal["ideal", "best_fit", "caching", "fixed"]
"""Name of an allocator: how places of the compute tier get addresses."""


class PolicyChoice(Part):
    """One row of the table: a policy with its options.

    Attributes
    ----------
    policy
        Name of a policy, or path of a plan: a ``hosim-plan/1`` file (``.jsonl`` or ``.jsonl.gz``), or a
        ``residency-trace/1`` whose schedule is replayed (``.json``). In a job of several graphs, each with a plan of
        its own, a ``*`` in the path stands for the name of the graph.
    label
        Name of the row; default: the policy's name, or the stem of the plan's file.
    options
        Options of the policy.
    alone
        Whether it plans as if no other rank used shared buses and tiers; the row shows the cost of that.
    staggered
        Whether ranks that share a link may get start offsets; they do if that makes the step shorter.
    allocator
        How places of the compute tier get addresses: ``ideal`` counts bytes only; ``best_fit`` takes the smallest hole
        that is large enough; ``caching`` cuts blocks from segments that it keeps, as PyTorch does; ``fixed`` assigns
        all offsets before the run, and so needs a fixed plan.
    order
        Order in which ranks issue their ops: that of the ``program``; or ``mpmd``, which list scheduling finds for all
        graphs of the job together, in room for all that ops use in program order, or the budget if that is more.
    in_place
        Which of the tensors that the workload lets kernels read in place stay where they are, if kernels can load from
        there: none (``never``), all (``always``), or the cheapest (``choose``), found by trying plans. Default:
        ``choose`` for `static`, and ``never`` for others.
    set_
        Changes to the hardware for this row only, after all others: ``{links.*.bandwidth: 40 GB/s}``. The scenario
        gives their origins, as for its own ``set``.
    """

    policy: Annotated[str, Field(min_length=1)]
    label: Label = ""
    options: dict[str, Any] = {}
    alone: StrictBool = False
    staggered: StrictBool = False
    allocator: AllocatorKind = "ideal"
    order: Literal["program", "mpmd"] = "program"
    in_place: Literal["never", "always", "choose"] | None = None
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
        must, found = "a plan from a file is for the program's own order", "order: mpmd"
        require(self.order == "program" or not self.is_file, must, found, "order", do="remove order")
        do = "drop staggered, or name a policy without alone"
        must, is_free = "the actions of a plan say what they read in place", not self.is_file or self.in_place is None
        require(is_free, must, f"in_place: {self.in_place}", "in_place", do="remove it")
        must = "turns are for a policy that knows of shared links"
        knows, found = not (self.alone or self.is_file), "alone: true" if self.alone else f"the plan {self.policy!r}"
        require(knows or not self.staggered, must, found, "staggered", do=do)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Let editors accept a bare name."""
        return {"anyOf": [{"type": "string"}, super().__get_pydantic_json_schema__(core, handler)]}


class DrawsOrigin(Part):
    """Where draws come from: a distribution, or a file.

    Attributes
    ----------
    distribution
        ``uniform``: all candidates are equally likely. ``zipf``: the r-th most likely candidate of a layer has a share
        proportional to r to the power of minus `skew`; the ranking is drawn for each layer.
    skew
        Exponent of ``zipf``, see `distribution`; ``uniform`` has none.
    stickiness
        The probability that a sample keeps a choice of the step before.
    file
        Instead of a distribution, a ``.csv`` (relative to the scenario): of shares, with the columns ``layer``,
        ``expert`` and ``share``; or of recorded choices, with the columns ``step``, ``op`` and ``chosen``.
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
    """Modelling choices about the machine; results record them.

    Attributes
    ----------
    copies_wait_for
        A copy may start once the last compute issued before it has started (``start``) or ended (``end``).
    collectives
        Where collectives run: those of each group on a stream of their own (``own_stream``), beside the computes; or
        all in line with the computes (``compute_stream``).
    """

    copies_wait_for: Literal["start", "end"] = "start"
    collectives: Literal["own_stream", "compute_stream"] = "own_stream"


class KvTier(Part):
    """How a tier keeps KV blocks.

    Attributes
    ----------
    room_bytes
        Room for the blocks [B]; null: all free memory.
    write
        When a block is stored here: ``back``, when it leaves the tier above; ``through``, once that tier has it in
        full, while it stays there. What is written through and has gone from here is not stored again when it leaves.
    uses
        With ``through``: only blocks that were computed or found so often.
    content
        Whether a block that is copied in stays here as well (``inclusive``), or leaves (``exclusive``).
    """

    room_bytes: Bytes | None = Field(None, alias="room")
    write: Literal["back", "through"] = "back"
    uses: Count = 1
    content: Literal["inclusive", "exclusive"] = "inclusive"

    def _check(self) -> None:
        must, do = "an exclusive tier has no block that the tier above has", "write back, or leave out content"
        require(self.content == "inclusive" or self.write == "back", must, "write: through", "write", do=do)
        must, do = "uses are counted for a tier that is written through", "add write: through, or remove uses"
        require(self.write == "through" or "uses" not in self.model_fields_set, must, "write: back", "uses", do=do)


KvRoom = Annotated[
    Annotated[KvTier, Tag("kept")] | Annotated[Bytes | None, Tag("room")],
    Discriminator(lambda value: "kept" if isinstance(value, KvTier | dict) else "room"),
]
"""How a tier keeps KV blocks, or just the room for them [B]."""


class Slo(Part):
    """Service level objectives: limits on the latencies of a request that counts as goodput.

    Attributes
    ----------
    ttft_ns, tpot_ns, e2e_ns
        Time to the first token, time per output token after it, and time to the last token [ns].
    """

    ttft_ns: Nanoseconds | None = Field(None, alias="ttft")
    tpot_ns: Nanoseconds | None = Field(None, alias="tpot")
    e2e_ns: Nanoseconds | None = Field(None, alias="e2e")

    def _check(self) -> None:
        require(self.model_fields_set, "an objective names a latency", "none", do="add ttft, tpot or e2e")

    def is_met(self, latencies: Mapping[str, Any]) -> bool:
        """Tell whether a request has finished and met all limits; its latencies [ns] are named as the attributes."""
        if latencies["e2e_ns"] is None:
            return False
        limits = ((name, getattr(self, name)) for name in type(self).model_fields)
        return all(limit is None or (latencies[name] or 0) <= limit for name, limit in limits)


class Scenario(Document):
    """A workload on a machine under some policies.

    Attributes
    ----------
    hardware
        The machine: a name in the catalogue, or a path that ends in ``.yaml``, relative to this document.
    workload
        The workload that runs on it: a name or a path, as for `hardware`.
    software
        How a framework drives the machine: a name or a path, as for `hardware`. Default: the best case, in which copies
        are pinned and kernels the best ones.
    set_
        Changes to the hardware, before the software drives it: field path -> value (``links.d2h.bandwidth: 40 GB/s``).
    homes
        Tensor kind, or shell pattern of tensor names -> tier, or ``free`` (the policy chooses). The last match wins.
        Default: persistent tensors in the compute tier (those that ops of the host alone use, in its tier), all others
        free. Another tier is a home for lasting tensors: persistent ones, and outputs, which then have room there from
        the start, and are there at the end of each step.
    budget_bytes
        Budget of the compute tier [B]; default: what is taken of it, less what is
        reserved, staged or lost.
    policies
        Rows of the table. A bare name is the policy with its default options.
    sweep
        Field path -> its value at each point of a curve, such as ``workload.parallel.data: [8, 16, 32]``; the n-th
        values of all fields are one point, as in the ``list`` of a study. `hosim sweep` runs all points if nothing else
        varies, other commands the documents as they stand.
    frontier
        Search how far a field may go while each row still fits, or is fast enough: a run then has the columns
        ``largest_<field>`` or ``least_<field>``, and what its steps are there.
    layout
        Search the layouts of the workload on so many devices: `hosim layout search`.
    draws
        Choices of dynamic reads, step by step: a distribution, or a file. Policies may know the probability of a
        candidate, but no choice before it is revealed.
    seed
        Seed of all draws.
    kv_tiers
        For `hosim serve`: tiers that keep the KV blocks of sequences that have left, from the compute tier down, each
        with the room for them [B], or null for all free memory; or with its room and its rules. In the compute tier
        running sequences share this room. Default: the compute tier alone.
    slo
        For `hosim serve`: limits on latencies; requests that meet all of them count as goodput.
    switches
        Modelling choices about the machine.
    expect
        Expectations on the rows; `hosim run` ends with exit code 1 if one does not hold.
    claim
        The published sentence that this scenario puts to the test.
    """

    schema_: Literal["hosim/scenario/1"] = Field("hosim/scenario/1", alias="schema")
    hardware: str
    workload: str
    software: str | None = None
    set_: dict[str, Any] = Field({}, alias="set")
    homes: dict[str, str] = {}
    budget_bytes: Bytes | None = Field(None, alias="budget")
    policies: tuple[PolicyChoice, ...] = Field(min_length=1)
    sweep: dict[str, Values] = {}
    frontier: Frontier | None = None
    layout: Layouts | None = None
    draws: DrawsOrigin = DrawsOrigin()
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    kv_tiers: dict[str, KvRoom] = {}
    slo: Slo | None = None
    switches: Switches = Switches()
    expect: tuple[Expectation, ...] = ()
    claim: Claim | None = None

    def kv_tier(self, name: str) -> KvTier:
        """Return how a tier keeps KV blocks."""
        kept = self.kv_tiers.get(name)
        return kept if isinstance(kept, KvTier) else KvTier().model_copy(update={"room_bytes": kept})

    def figures(self) -> Iterator[str]:
        """Iterate over the field paths that need an origin: of the machine, as set here or for a row; room, and draws.

        What a policy is told, what is asked and what is expected are no figures.
        """
        yield from dict.fromkeys([*self.set_, *(path for choice in self.policies for path in choice.set_)])
        yield from (path for path in super().figures() if path.startswith(("budget", "kv_tiers.", "draws.")))

    def _keys(self, path: str) -> tuple[str, ...]:
        if path in self.set_:
            return "set", path
        row = next((index for index, choice in enumerate(self.policies) if path in choice.set_), None)
        return super()._keys(path) if row is None else ("policies", str(row), "set", path)

    def _stated(self) -> tuple[str, ...]:
        return (*with_prefixes(self.figures()), *super()._stated())

    def _check(self) -> None:
        rows = [choice.row for choice in self.policies]
        of_frontiers = (*BOUNDS, COMPUTE, FASTEST, UNMOVED)
        for index, row in enumerate(rows):
            must, do = "each row of the table has a label of its own", "give one of them another label"
            require(row not in rows[:index], must, f"{row!r} twice", "policies", str(index), do=do)
            must = f"a row has a name of its own; a frontier uses {', '.join(of_frontiers)}"
            require(row not in of_frontiers, must, repr(row), "policies", str(index), do="find another label")
        for index, expectation in enumerate(self.expect):
            path = ("expect", str(index))
            for key, named in expectation.rows.items():
                named_in(named, rows, "an expectation names a row of policies", *path, key)
            is_named = not self.claim or expectation.printed is None or expectation.figure is not None
            must = "a printed figure that puts a claim to the test has a name"
            do = "add figure: a name that every scenario uses for it, such as step_at_40gbps"
            require(is_named, must, "none", *path, "figure", do=do)

"""The job document: different programs on one set of ranks, and what each hands to others, round by round.

In a *round* (a step of the job) each program runs, in the order of the document where programs share ranks, beside one
another where they do not. What `to` reads in a round was written by `from` in the same round, if `from` stands before
`to` in the document, and else in the round before; with ``stale: k`` so many rounds earlier.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import Discriminator, Field, StrictBool, Tag, model_validator

from simulator.document import MOST_RANKS, Citation, Count, Document, Few, FewOrNone, Fit, Key, Line, Part, Ranks
from simulator.errors import insist
from simulator.units import Bytes, Nanoseconds, named_in, require
from simulator.workload import Sides, Workload

_WAYS, _ENDS = ("weights", "tensors", "bytes_"), {"from": "from_", "to": "to"}


def _branch(value: object) -> str:
    return "name" if isinstance(value, str) else "inline"


# Without a discriminator, faults of both branches would be told.
Named = Annotated[Annotated[str, Tag("name")] | Annotated[Workload, Tag("inline")], Discriminator(_branch)]
"""A workload by its name in the catalogue or its path, or written here."""


class DelayDraw(Part):
    """How a delay varies from rank to rank about its mean.

    Attributes
    ----------
    distribution
        The distribution.
    deviation_ns
        Its standard deviation; of ``exponential`` the mean, and not stated.
    """

    distribution: Literal["uniform", "exponential", "lognormal"]
    deviation_ns: Nanoseconds = Field(0, alias="deviation")


class JobProgram(Part):
    """What runs on some ranks of the job.

    Attributes
    ----------
    workload
        A workload: its name in the catalogue, a path that ends in ``.yaml``, or its fields. Once read, its fields.
    set_
        Changes of a workload that is named: dotted path -> value.
    delay_ns
        Instead of a workload: so long nothing is computed, as while a tool or an environment is waited for.
    spread
        How the delay varies; default: not at all.
    ranks
        Number of ranks, the next ones that no program before has; or a list of them (``0-7``, ``0,2,4-7``); or the name
        of a program before, with which it shares them. A multiple of the ranks that its layout needs: so many copies
        run side by side.
    samples
        Sequences that it handles in a run, on all its ranks: ``batch`` of its workload is then what that takes, rounded
        up.
    runs
        How often it runs in a round.
    """

    workload: Named | None = None
    set_: dict[str, Any] = Field({}, alias="set")
    delay_ns: Nanoseconds | None = Field(None, alias="delay")
    spread: DelayDraw | None = None
    ranks: Ranks | Line
    samples: Count | None = None
    runs: Few = 1

    def _check(self) -> None:
        must, do = "a program is a workload or a delay", "add one of the two, or remove the other"
        require((self.workload is None) != (self.delay_ns is None), must, "neither or both", do=do)
        is_named = isinstance(self.workload, str)
        require(is_named or not self.set_, "set changes a workload that is named", "none", "set", do="change its field")
        is_model = self.workload is not None and getattr(self.workload, "graph", None) is None
        must, do = "samples are of a model", "remove it"
        require(is_model or self.samples is None, must, "another program", "samples", do=do)
        must, do = "a spread is of a delay", "remove it"
        require(self.spread is None or self.workload is None, must, "a workload", "spread", do=do)

    @property
    def work(self) -> Workload | None:
        """Its workload; None for a delay.

        Raises
        ------
        ConfigError
            If it is a name that nobody read.
        """
        must, do = "the workloads of a job are read before it is built", "read it from a file"
        insist(not isinstance(self.workload, str), "job", must, repr(self.workload), do)
        return cast(Workload | None, self.workload)

    def on(self, ranks: int) -> Workload | None:
        """Return its workload as it runs on so many ranks: with the batch that its samples take there."""
        work = self.work
        if work is None or self.samples is None:
            return work
        must, do = "samples are of a model", "remove it"
        insist(work.model is not None, f"program {work.name!r}, samples", must, "a graph", do)
        each = work.model_copy(update={"batch": 1}).sequences * max(1, ranks // work.ranks)
        return work.model_copy(update={"batch": -(-self.samples // each)})


class JobEdge(Part):
    """What one program hands to another in each round.

    Attributes
    ----------
    from_, to
        Names of the programs.
    weights
        All weights that `from` trains and `to` has: each rank of `to` gets the slices that it lacks, wherever they lie.
    tensors
        Pattern of tensors that `from` writes -> that of tensors that `to` reads; what ``*`` stands for is the same in
        both. Ranks correspond in order; of n and m ranks one is a multiple of the other.
    bytes_
        So much, from all ranks of `from` to all of `to`, once `from` has run and before `to` begins.
    stale
        Number of rounds by which the data that `to` reads is older than necessary. It waits in so many buffers of `to`.
    back
        Of tensors: `to`, which stands before `from` and on other ranks, reads it in the same round, as gradients go
        back to where features came from.
    part
        Of tensors: what `to` reads is a smaller part of what `from` wrote, as where of an embedding's gradient what
        belongs to features goes back.
    each_run
        Of tensors, in the same round: each run of each copy of `from` hands over, not the last run alone. Run r of copy
        c, of n copies, gives a tensor that is named without ``*`` to the (r n + c)-th, from 0, of those of `to`. If the
        pattern of `from` has the ``*``, copy c of `to` gets the c-th. Data ranks count as copies.
    """

    from_: Key = Field(alias="from")
    to: Key
    weights: Literal[True] | None = None
    tensors: dict[str, str] = {}
    bytes_: Annotated[Bytes, Field(gt=0)] | None = Field(None, alias="bytes")
    stale: FewOrNone = 0
    back: StrictBool = False
    part: StrictBool = False
    each_run: StrictBool = False

    def _check(self) -> None:
        must, do = "a program hands something to another one", "name two programs"
        require(self.from_ != self.to, must, repr(self.to), "to", do=do)
        stated = [way.rstrip("_") for way in _WAYS if getattr(self, way)]
        must, do = "an edge says one of weights, tensors, bytes", "write weights: true, tensors: {}, or bytes:"
        require(len(stated) == 1, must, ", ".join(stated) or "none", do=do)
        require(not self.part or bool(self.tensors), "a part is of tensors", ", ".join(stated), "part", do="remove it")
        for stars in ([text.count("*") for text in pair] for pair in self.tensors.items()):
            of_runs = "with each_run one of both patterns has one *, and the other none"
            fits = sorted(stars) == [0, 1] if self.each_run else stars[0] == stars[1]
            must = of_runs if self.each_run else "both patterns have as many *"
            require(fits, must, f"{stars[0]} and {stars[1]}", "tensors", do="correct one pattern")


class JobDocument(Document):
    """Programs on ranks, and what they hand to one another in each round.

    Attributes
    ----------
    programs
        Name -> program.
    edges
        What programs hand to others.
    steps
        Number of rounds, one after another, in place of the steps of each workload.
    counts
        The program whose tokens and samples count as those of a step; default: none.
    idle
        Ranks that run no program (``14-15``); others that no program has are refused.
    """

    schema_: Literal["hosim/job/1"] = Field("hosim/job/1", alias="schema")
    programs: Annotated[dict[Key, JobProgram], Field(min_length=1)]
    edges: tuple[JobEdge, ...] = ()
    steps: Count = 2
    counts: Key | None = None
    idle: Line | None = None
    model: ClassVar[None] = None
    decoder: ClassVar[None] = None
    graph: ClassVar[None] = None
    requests: ClassVar[None] = None
    sequence: ClassVar[None] = None
    phase: ClassVar[str] = "job"
    on: ClassVar[Sides] = Sides()
    """What the workload of one program would say."""

    @model_validator(mode="before")
    @classmethod
    def _names_what_it_has(cls, data: Any) -> Any:
        """Call a workload that is written here as its program, unless it has a name."""
        programs = data.get("programs") if isinstance(data, dict) else None
        made = dict(programs) if isinstance(programs, dict) else {}
        for name, program in made.items():
            if isinstance(program, dict) and isinstance(work := program.get("workload"), dict):
                made[name] = program | {"workload": {"name": name} | work}
        return data | {"programs": made} if made else data

    def _check(self) -> None:
        names, placed = tuple(self.programs), self.placed
        named = {("edges", str(i), end): getattr(e, f) for i, e in enumerate(self.edges) for end, f in _ENDS.items()}
        for path, name in [(("counts",), self.counts or names[0]), *named.items()]:
            named_in(name, names, "this names a program of the job", *path)
        must, do = "of programs that share ranks one has all ranks of the other", "place them apart, or one within"
        for (other, before), (name, ranks) in combinations(placed.items(), 2):
            both = {*before}.intersection(ranks)
            found = f"rank {min(both, default=0)} of {other} and {name}"
            fits = not both or len(both) == min(len(before), len(ranks))
            require(fits, must, found, "programs", name, "ranks", do=do)
        of_back = "only tensors go back, in the same round, to a program before on other ranks"
        of_each_run = "runs hand over tensors, in the same round, to a program behind"
        alike = [edge if edge.bytes_ else edge.model_copy(update={"stale": 0}) for edge in self.edges]
        for index, edge in enumerate(self.edges):
            same = alike.index(alike[index])
            require(same == index, "edges differ", f"the same as edge {same}", "edges", str(index), do="remove one")
            is_before, is_now = names.index(edge.to) < names.index(edge.from_), bool(edge.tensors) and not edge.stale
            is_apart = {*placed[edge.from_]}.isdisjoint(placed[edge.to])
            for key, fits, must in (
                ("back", is_now and is_apart and is_before, of_back),
                ("each_run", is_now and not is_before, of_each_run),
            ):
                require(fits or not getattr(edge, key), must, "another edge", "edges", str(index), key, do="remove it")
        taken, idle = {rank for ranks in placed.values() for rank in ranks}, {*self.idle_ranks}
        found = f"rank {', '.join(map(str, sorted(taken & idle)[:4]))}"
        require(taken.isdisjoint(idle), "an idle rank runs no program", found, "idle", do="remove it")
        taken |= idle
        left = sorted({*range(max(taken))} - taken)
        found, do = f"none on rank {', '.join(map(str, left[:4]))}", "place a program there, or list it under idle"
        require(not left, "each rank has a program, or is idle on purpose", found, "programs", do=do)

    @property
    def placed(self) -> dict[str, tuple[int, ...]]:
        """JobProgram -> its ranks, in order."""
        placed: dict[str, tuple[int, ...]] = {}
        for name, program in self.programs.items():
            free = 1 + max((max(ranks) for ranks in placed.values()), default=-1)
            if isinstance(program.ranks, int):
                placed[name] = tuple(range(free, free + program.ranks))
            else:
                placed[name] = placed.get(program.ranks) or _ranks(program.ranks, "programs", name, "ranks")
        return placed

    @property
    def sharing(self) -> list[tuple[str, str]]:
        """Pairs of programs that share ranks, on which they run one after another."""
        pairs = combinations(self.placed.items(), 2)
        return [(name, other) for (name, ranks), (other, others) in pairs if not {*ranks}.isdisjoint(others)]

    @property
    def idle_ranks(self) -> tuple[int, ...]:
        """The ranks that run no program on purpose."""
        return _ranks(self.idle, "idle") if self.idle else ()

    @property
    def settled(self) -> tuple[JobDocument]:
        """Itself: no policy chooses what runs a part of a program."""
        return (self,)

    @property
    def documents(self) -> tuple[Document, ...]:
        """The document, and those of its programs."""
        works = [program.workload for program in self.programs.values()]
        return (self, *(work for work in works if isinstance(work, Workload)))

    def entry_of(self, path: str) -> tuple[str, str | Fit | tuple[Citation, ...]] | None:
        """Find the origin of `path` here, or in the workload of a program that it leads into."""
        parts = re.fullmatch(r"(programs\.([^.]+)\.workload\.)(.+)", path)
        work = self.programs[parts[2]].workload if parts and parts[2] in self.programs else None
        if parts is None or not isinstance(work, Workload):
            return super().entry_of(path)
        stated = {prefix for table in (self.fitted, self.assumed, self.sources) for prefix in table}
        is_here = any(f"{path}.".startswith(f"{prefix}.") for prefix in stated if prefix.startswith(parts[1]))
        return (None if is_here else work.entry_of(parts[3])) or super().entry_of(path)

    @property
    def meets(self) -> bool:
        """Whether its ranks are said to meet."""
        return bool(self.edges) or any(program.work and program.work.meets for program in self.programs.values())

    @property
    def tokens(self) -> int | None:
        """Tokens of a round that count."""
        return self._counted("tokens")

    @property
    def samples(self) -> int | None:
        """Sequences of a round that count."""
        return self._counted("samples")

    def _counted(self, key: str) -> int | None:
        """Return what the program that counts handles in a round; None if unknown, as of a graph on several ranks."""
        if self.counts is None:
            return None
        program, ranks = self.programs[self.counts], len(self.placed[self.counts])
        count = getattr(work := program.on(ranks), key, None)
        if work is None or count is None or (work.graph and ranks > 1):
            return None
        handled = int(count * program.runs * ranks // work.ranks)
        of_run = work.sequences * (ranks // work.ranks)  # what pads the batches is no work
        return handled if program.samples is None else handled * program.samples // of_run

    def lag(self, edge: JobEdge) -> int:
        """Return how many rounds before it is read what an edge hands over was written."""
        names = [*self.programs]
        return edge.stale + (names.index(edge.to) < names.index(edge.from_) and not edge.back)


def _ranks(text: str, *path: str) -> tuple[int, ...]:
    """Read ranks such as ``0-3,6``."""
    must = f"ranks are a number, a list such as 0-3,6 of different ones below {MOST_RANKS:,}, or a program before"
    parts = [re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", part.strip()) for part in text.split(",")]
    ends = [(int(part[1]), int(part[2] or part[1])) for part in parts if part]
    fits = all(parts) and all(first <= last < MOST_RANKS for first, last in ends)
    require(fits, must, repr(text), *path, do="write for example 0-7")
    ranks = [rank for first, last in ends for rank in range(first, last + 1)]
    require(len({*ranks}) == len(ranks), must, f"one twice in {text!r}", *path, do="name each once")
    return tuple(ranks)

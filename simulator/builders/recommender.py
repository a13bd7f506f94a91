"""Training step of a recommender on all ranks: replicas of its perceptrons, and tables that they share.

A batch may run in parts (micro-batches). All lookups stand first, then the perceptrons of each part, then what updates
the tables, so that rows and results are those of one batch, and exchanges of a part run beside the ops of another.

*Tables.* What a rank has of a table is up to three persistent tensors: rows that stay in the cache (``t0.3/cached``),
those that a batch brings in (``missed``) and all others (``rest``), which no op uses. The lookup reads the first two,
the update writes them. How many rows each has follows from the skew (`popularity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Unpack

from simulator.builders.popularity import Use, use
from simulator.errors import insist
from simulator.graph import Collective, CollectiveKind, Graph, Job, check_run
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.units import counted
from simulator.workload import ADAM_FLOPS, DlrmModel, Workload

ID_BYTES = 8
"""Size of what names a row: int64, as in PyTorch."""
_OF_ROW_UPDATE = 6
"""FLOPs for each element of a row's update: Adagrad's square, sum, root, division, scaling and subtraction."""


class Held(NamedTuple):
    """A table as a rank holds it: all of it, or an equal part of its rows and of what they are used for.

    Attributes
    ----------
    name
        Prefix of its tensors.
    lookups, touched, cached, missed, rest
        Numbers of lookups in a batch, of different rows that they touch, and of rows in each of its tensors.
    """

    name: str
    lookups: int
    touched: int
    cached: int
    missed: int
    rest: int

    @property
    def rows(self) -> dict[str, int]:
        """Its tensors, with how many rows each has."""
        parts = {"cached": self.cached, "missed": self.missed, "rest": self.rest}
        return {f"{self.name}/{part}": rows for part, rows in parts.items() if rows}

    @property
    def used(self) -> list[str]:
        """Its tensors that ops use."""
        return [name for name in self.rows if not name.endswith("/rest")]


def build(workload: Workload, model: DlrmModel) -> Job:
    """Build a graph for each number of tables that ranks hold.

    Raises
    ------
    ConfigError
        If there are too many ops or tensors, some rank has no table, or a cache is too small.
    """
    shares = check(workload, model)
    unlike = list(dict.fromkeys(shares))
    most = max(sum(count for _, count in share) for share in unlike)
    graphs = tuple(_Step(workload, model, _held(workload, model, share)).build(most) for share in unlike)
    labels = tuple(
        f"{workload.name} of {counted(len(list(_held(workload, model, share))), 'table')}" for share in unlike
    )
    return Job(workload.name, graphs, tuple(map(unlike.index, shares)), labels if len(graphs) > 1 else (workload.name,))


Share = tuple[tuple[int, int], ...]
"""Entries of the model's tables, and how many of each a rank has."""


def check(workload: Workload, model: DlrmModel) -> list[Share]:
    """Deal out the tables to ranks, in turn, and refuse what cannot be; by rank, what it has.

    Raises
    ------
    ConfigError
        As `build`.
    """
    ranks, tables, where = workload.parallel.data, model.vectors - 1, f"workload {workload.name}"
    by_rows = model.sharding == "rows"
    must, do = "each rank has a table", "lower parallel.data, or set model.sharding to rows"
    insist(by_rows or tables >= ranks, where, must, f"{counted(tables, 'table')} for {ranks:,} ranks", do)
    for index, found in enumerate(_uses(workload, model)):
        must, do = (
            "a cache has room for a block of rows, and, by lru, for all that a batch brings in",
            "raise its share",
        )
        rows = f"{found.cached_rows + found.missed_rows:,} rows, and {found.missed_rows:,} come in"
        insist(found.cached_rows > 0, f"{where}, model.tables.{index}", must, f"{rows} of a cache", do)
    on_rank = tables if by_rows else -(-tables // ranks)
    times = 1 + workload.parallel.micro_batches
    check_run(times * (on_rank + 4 * len(model.layers) + 6), workload.steps, where, (times + 2) * on_rank)
    if by_rows:
        return [tuple((index, table.count) for index, table in enumerate(model.tables))] * ranks
    entries = [index for index, table in enumerate(model.tables) for _ in range(table.count)]
    return [tuple(sorted(Counter(entries[rank::ranks]).items())) for rank in range(ranks)]


def _uses(workload: Workload, model: DlrmModel) -> list[Use]:
    """Count what a batch of all ranks does with each entry of the tables."""
    samples, kept = workload.samples or 0, model.cache
    return [use(table.rows, model.skew, max(1, round(samples * table.lookups)), kept) for table in model.tables]


def _held(workload: Workload, model: DlrmModel, share: Share) -> Iterator[Held]:
    """Yield the tables of a rank."""
    parts, uses = workload.parallel.data if model.sharding == "rows" else 1, _uses(workload, model)
    for index, count in share:
        found, rows = uses[index], model.tables[index].rows
        cached, missed = -(-found.cached_rows // parts), -(-found.missed_rows // parts)
        rest = max(0, -(-rows // parts) - cached - missed)
        for number in range(count):
            lookups, touched = -(-found.lookups // parts), -(-found.rows // parts)
            yield Held(f"t{index}.{number}", lookups, touched, cached, missed, rest)


class _Step:
    """The step of one rank, as it is built."""

    def __init__(self, workload: Workload, model: DlrmModel, held: Iterator[Held]) -> None:
        self.workload, self.model, self.held = workload, model, list(held)
        self.graph = GraphBuilder(workload.name, f"workload {workload.name}")
        self.size, self.samples, self.ranks = workload.dtypes.element_bytes, workload.batch, workload.parallel.data
        self.parts = [f"mb{i}" for i in range(workload.parallel.micro_batches)]
        self.phase = "forward"

    def build(self, most: int) -> Graph:
        """Build the graph; `most` is the largest number of tables of a rank, with which all wait in an exchange."""
        self._declare()
        of_tables = self.ranks * self.samples * most * self.model.dim * self.size
        exchanged_bytes = max(of_tables, self.samples * (self.model.vectors - 1) * self.model.dim * self.size)
        for part in self.parts:
            self._look_up(part, exchanged_bytes)
        for part in self.parts:
            self._forward(part)
            self._backward(part, exchanged_bytes)
        self._update()
        return self.graph.build(steps=self.workload.steps)

    def _declare(self) -> None:
        optimizer, dtypes = self.workload.optimizer, self.workload.dtypes
        for name, (inputs, outputs) in self.model.layers.items():
            shape = inputs + 1, outputs
            states = (inputs + 1) * outputs * dtypes.optimizer_bytes_per_parameter
            if optimizer is not None:
                states = optimizer.state_bytes(shape, 1, self.size, is_matrix=True)
            self.graph.tensor(f"{name}.weight", (inputs + 1) * outputs * self.size, "weight", persistent=True)
            self.graph.tensor(f"{name}.state", states, "optimizer_state", persistent=True)
            self.graph.tensor(f"{name}.grad", (inputs + 1) * outputs * dtypes.gradient_bytes, "gradient")
        if self.ranks > 1:
            self.graph.group("data", [range(self.ranks)])
        for name, rows in (item for table in self.held for item in table.rows.items()):
            self.graph.tensor(name, rows * self.model.row_bytes, "weight", persistent=True)

    def _made(self, name: str, *elements: int, kind: str = "activation") -> str:
        """Add a tensor of the micro-batch's samples, so many elements each; return its name."""
        size_bytes = self.samples * self.size
        for count in elements:
            size_bytes *= count
        self.graph.tensor(name, size_bytes, kind)
        return name

    def _op(self, name: str, reads: list[str], writes: list[str], **more: Unpack[OpFields]) -> None:
        kind = "collective" if more.get("collective") else "compute"
        dtype = self.workload.dtypes.compute
        self.graph.op(name, reads, writes, kind, **OpFields(phase=self.phase, dtype=dtype, **more))

    def _meet(self, name: str, kind: CollectiveKind, size_bytes: int, reads: list[str], writes: list[str]) -> None:
        if self.ranks > 1:
            self._op(name, reads, writes, collective=Collective(kind, "data", size_bytes))

    def _look_up(self, part: str, exchanged_bytes: int) -> None:
        """Send the names of rows to who has them, look them up, add them up for each sample, and send the sums back."""
        model, parts, sums = self.model, len(self.parts), list[str]()
        if self.ranks > 1:
            ids_bytes = -(-sum(table.lookups for table in self.held) * ID_BYTES // parts)
            self.graph.tensor(f"{part}/ids", ids_bytes)
            whole = round(self.samples * sum(table.count * table.lookups for table in model.tables)) * ID_BYTES
            self._meet(f"{part}/fwd/ids", CollectiveKind.ALL_TO_ALL, whole, [], [f"{part}/ids"])
        for table in self.held:
            sums.append(self._made(f"{part}/{table.name}.sum", self.ranks, model.dim))
            lookups = -(-table.lookups // parts)
            reads, row_bytes = [*table.used, *([f"{part}/ids"] if self.ranks > 1 else [])], model.row_bytes
            read_bytes = lookups * (row_bytes - model.row_state_bytes + ID_BYTES)
            self._op(f"{part}/fwd/{table.name}", reads, [sums[-1]], read_bytes=read_bytes, flops=lookups * model.dim)
        if self.ranks > 1:
            made = self._made(f"{part}/embeddings", model.vectors - 1, model.dim)
            kind = CollectiveKind.REDUCE_SCATTER if model.sharding == "rows" else CollectiveKind.ALL_TO_ALL
            self._meet(f"{part}/fwd/embeddings", kind, exchanged_bytes, sums, [made])

    def _embeddings(self, part: str) -> list[str]:
        if self.ranks > 1:
            return [f"{part}/embeddings"]
        return [f"{part}/{table.name}.sum" for table in self.held]

    def _forward(self, part: str) -> None:
        """Run the bottom perceptron, beside the last exchange; bring all vectors together; run the top perceptron."""
        self.phase, taken = "forward", list[str]()
        samples, model = self.samples, self.model
        for name, (inputs, outputs) in model.layers.items():
            if name == "top.0":
                pairs = samples * model.vectors**2
                is_dot = model.interaction == "dot"
                made = self._made(f"{part}/features", inputs)
                reads = [*taken, *self._embeddings(part)]
                self._op(f"{part}/fwd/interaction", reads, [made], flops=2 * pairs * model.dim * is_dot,
                         workspace_bytes=pairs * self.size * is_dot, op_class="matmul" if is_dot else "vector")  # fmt: skip
                taken = [made]
            made = self._made(f"{part}/{name}.out", outputs)
            self._op(f"{part}/fwd/{name}", [*taken, f"{name}.weight"], [made], flops=2 * samples * inputs * outputs,
                     op_class="matmul")  # fmt: skip
            taken = [made]

    def _backward(self, part: str, exchanged_bytes: int) -> None:
        """Make the gradients of the top, of the tables' sums, which go back to who has them, and of the bottom."""
        self.phase, layers, model = "backward", [*self.model.layers.items()], self.model
        given = [f"{part}/{layers[-1][0]}.out"]  # the loss is part of the last layer
        for at in reversed(range(len(layers))):
            name, (inputs, outputs) = layers[at]
            taken = [] if name == "bottom.0" else [f"{part}/{layers[at - 1][0]}.out"]
            taken = [f"{part}/features"] if name == "top.0" else taken
            made = [self._made(f"{taken[0]}.grad", inputs)] if taken else []
            earlier = [f"{name}.grad"] if part != self.parts[0] else []
            self._op(f"{part}/bwd/{name}", [*given, *taken, f"{name}.weight", *earlier], [*made, f"{name}.grad"],
                     flops=(4 if taken else 2) * self.samples * inputs * outputs, op_class="matmul")  # fmt: skip
            given = made
            if name == "top.0":
                given = self._part_again(part, given[0], layers[at - 1][0], exchanged_bytes)
            if name.endswith(".0") and part == self.parts[-1]:
                grads = [f"{other}.grad" for other in model.layers if other.startswith(name[:-1])]
                size_bytes = sum((i + 1) * o for other, (i, o) in layers if f"{other}.grad" in grads)
                self._meet(f"bwd/{name[:-2]}.grads", CollectiveKind.ALL_REDUCE,
                           size_bytes * self.workload.dtypes.gradient_bytes, grads, grads)  # fmt: skip

    def _part_again(self, part: str, given: str, bottom: str, exchanged_bytes: int) -> list[str]:
        """Go back through the interaction, and send the gradients of sums to who has the rows."""
        model, samples, is_dot = self.model, self.samples, self.model.interaction == "dot"
        local = self._made(f"{part}/embeddings.grad", model.vectors - 1, model.dim)
        made = [self._made(f"{part}/{bottom}.grad", model.dim), local]
        reads = [given, f"{part}/{bottom}.out", *self._embeddings(part)]
        flops, workspace = (samples * model.vectors**2 * each * is_dot for each in (4 * model.dim, self.size))
        self._op(f"{part}/bwd/interaction", reads, made, flops=flops, workspace_bytes=workspace,
                 op_class="matmul" if is_dot else "vector")  # fmt: skip
        if self.ranks > 1:
            sums = self._made(f"{part}/sums.grad", self.ranks, len(self.held), model.dim)
            kind = CollectiveKind.ALL_GATHER if model.sharding == "rows" else CollectiveKind.ALL_TO_ALL
            self._meet(f"{part}/bwd/embeddings", kind, exchanged_bytes, [local], [sums])
        return made[:1]

    def _update(self) -> None:
        """Update the rows that were touched, and the layers."""
        self.phase, model = "update", self.model
        grads = [f"{part}/{'sums' if self.ranks > 1 else 'embeddings'}.grad" for part in self.parts]
        for table in self.held:
            changed_bytes = table.touched * model.row_bytes
            self._op(f"update/{table.name}", [*grads, *table.used], table.used, repeatable=False,
                     read_bytes=table.lookups * (model.dim * self.size + ID_BYTES) + changed_bytes,
                     write_bytes=changed_bytes,
                     flops=(table.lookups + _OF_ROW_UPDATE * table.touched) * model.dim)  # fmt: skip
        for name, (inputs, outputs) in model.layers.items():
            changed = [f"{name}.weight", f"{name}.state"]
            flops = ADAM_FLOPS * (inputs + 1) * outputs
            self._op(f"update/{name}", [f"{name}.grad", *changed], changed, flops=flops, repeatable=False)

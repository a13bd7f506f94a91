"""Training step of a recommender on all ranks: replicas of its perceptrons, and tables that they share.

A batch may run in parts (micro-batches). First all names of rows go to who has these, then come all lookups, then the
perceptrons of each part, then what updates the tables: rows and results are those of one batch, and exchanges of a part
run beside the ops of another.

*Tables.* What a rank has of a table is up to three persistent tensors: rows that stay in the cache (``t0.3/cached``),
those that a batch brings in (``missed``) and all others (``rest``), which no op uses. The lookup reads the first two,
the update writes them. How many rows each has follows from the skew (`simulator.builders.popularity`).
"""

from __future__ import annotations

from collections import Counter
from typing import Unpack

from simulator.builders.popularity import Use, use
from simulator.errors import insist
from simulator.graph import Collective, CollectiveKind, Graph, Job, check_run
from simulator.graph_builder import GraphBuilder, OpFields
from simulator.units import counted
from simulator.workload import ADAM_FLOPS, DlrmModel, Workload

_ID_BYTES = 8  # of what names a row: int64, as in PyTorch
_ROW_FLOPS = 6  # for each element of a row: Adagrad's square, sum, root, division, scaling and subtraction
_Share = tuple[int, ...]  # how many tables of each entry of the model a rank has


def build(workload: Workload, model: DlrmModel) -> Job:
    """Build a graph for each share of the tables that some rank has.

    Raises
    ------
    ConfigError
        As `check`.
    """
    shares = check(workload, model)
    unlike = [*dict.fromkeys(shares)]
    most = max(map(sum, unlike))
    graphs = tuple(_Step(workload, model, share, most).build() for share in unlike)
    labels = tuple(", ".join(f"{count} of t{index}" for index, count in enumerate(share)) for share in unlike)
    return Job(workload.name, graphs, tuple(map(unlike.index, shares)), labels)


def check(workload: Workload, model: DlrmModel) -> list[_Share]:
    """Return for each rank its share of the tables, which are dealt out in turn; or all, of which it has some rows.

    Raises
    ------
    ConfigError
        If there are too many ops or tensors, some rank has no table, or a cache is too small.
    """
    ranks, tables, where = workload.parallel.data, model.vectors - 1, f"workload {workload.name}"
    by_rows, times = model.sharding == "rows", 1 + workload.parallel.micro_batches
    must, do = "each rank has a table", "lower parallel.data, or set model.sharding to rows"
    insist(by_rows or tables >= ranks, where, must, f"{counted(tables, 'table')} for {ranks:,} ranks", do)
    held = tables if by_rows else -(-tables // ranks)
    ops, tensors = times * (held + 2 * len(model.layers) + 4), (times + 2) * max(held, tables // times)
    check_run(ops, workload.steps, where, tensors)
    for index, counts in enumerate(_uses(workload, model)):
        must, do = "a cache has room for a block, and by lru for all that a batch brings in", "raise model.cache.share"
        found = f"{counts.missed:,} rows that come in, and {counts.cached:,} beside"
        insist(counts.cached > 0, f"{where}, model.tables.{index}", must, found, do)
    entries = [index for index, table in enumerate(model.tables) for _ in range(table.count)]
    dealt = [Counter(entries[rank::ranks]) for rank in range(ranks)] if not by_rows else [Counter(entries)] * ranks
    return [tuple(counts[index] for index in range(len(model.tables))) for counts in dealt]


def _uses(workload: Workload, model: DlrmModel) -> list[Use]:
    """Count what a batch of all ranks does with a table of each entry."""
    samples = workload.samples or 0
    return [use(table.rows, model.skew, round(samples * table.lookups) or 1, model.cache) for table in model.tables]


class _Step:
    """The step of one rank, as it is built; `most` is the largest number of tables of a rank."""

    def __init__(self, workload: Workload, model: DlrmModel, share: _Share, most: int) -> None:
        self.dtypes, self.model, self.steps = workload.dtypes, model, workload.steps
        self.graph, self.phase = GraphBuilder(workload.name, f"workload {workload.name}"), "forward"
        self.samples, self.ranks, by_rows = workload.batch, workload.parallel.data, model.sharding == "rows"
        self.parts = [f"mb{i}" for i in range(workload.parallel.micro_batches)]
        self.sums_bytes = workload.batch * self.ranks * model.dim * self.dtypes.element_bytes
        self.exchanged_bytes = self.sums_bytes * max(most, -(-(model.vectors - 1) // self.ranks))
        self.there = CollectiveKind.REDUCE_SCATTER if by_rows else CollectiveKind.ALL_TO_ALL
        self.back = CollectiveKind.ALL_GATHER if by_rows else CollectiveKind.ALL_TO_ALL
        uses = [each.part(self.ranks if by_rows else 1) for each in _uses(workload, model)]
        self.tables = {f"t{i}.{k}": uses[i] for i, count in enumerate(share) for k in range(count)}
        self.bottom_out, self.device = f"bottom.{len(model.bottom) - 2}.out", workload.on.tables
        names = [*model.layers]
        self.inputs = dict(zip(names, ("", *(f"{name}.out" for name in names)), strict=False)) | {"top.0": "features"}

    def build(self) -> Graph:
        """Build the graph."""
        self._declare()
        sent_bytes = round(self.samples * sum(table.count * table.lookups for table in self.model.tables)) * _ID_BYTES
        got_bytes = sum(counts.lookups for counts in self.tables.values()) * _ID_BYTES // len(self.parts)
        for part in self.parts:  # before any sums, behind which they would wait
            self.graph.tensor(f"{part}/ids", got_bytes)
            self._meet(f"{part}/fwd/ids", CollectiveKind.ALL_TO_ALL, sent_bytes, [], [f"{part}/ids"])
        for part in self.parts:
            self._look_up(part)
        for part in self.parts:
            self._forward(part)
            self._backward(part)
        grads = [f"{name}.grad" for name in self.model.layers]
        size_bytes = sum(self.model.layer_parameters.values()) * self.dtypes.gradient_bytes
        self._meet("bwd/grads", CollectiveKind.ALL_REDUCE, size_bytes, grads, grads)
        self._update()
        return self.graph.build(steps=self.steps)

    def _declare(self) -> None:
        """Add the ranks that meet, and what persists."""
        self.graph.group("data", [range(self.ranks)])
        sizes = {"weight": self.dtypes.element_bytes, "optimizer_state": self.dtypes.optimizer_bytes_per_parameter}
        for name, count in self.model.layer_parameters.items():
            for kind, size in sizes.items():
                self.graph.tensor(f"{name}.{kind}", count * size, kind, persistent=True)
            self.graph.tensor(f"{name}.grad", count * self.dtypes.gradient_bytes, "gradient")
        for name, counts in self.tables.items():
            for rows in ("cached", "missed", "rest"):
                size_bytes = getattr(counts, rows) * self.model.row_bytes
                self.graph.tensor(f"{name}/{rows}", size_bytes, "weight", persistent=True)

    def _made(self, name: str, width: int) -> str:
        """Add a tensor of so many elements for each of the rank's samples; return its name."""
        self.graph.tensor(name, self.samples * width * self.dtypes.element_bytes)
        return name

    def _op(self, name: str, reads: list[str], writes: list[str], **more: Unpack[OpFields]) -> None:
        is_vector = "read_bytes" in more or self.phase == "update"
        more |= {"phase": self.phase, "dtype": self.dtypes.compute, "op_class": "vector" if is_vector else "matmul"}
        self.graph.op(name, reads, writes, "collective" if "collective" in more else "compute", **more)

    def _meet(self, name: str, kind: CollectiveKind, size_bytes: int, reads: list[str], writes: list[str]) -> None:
        self._op(name, reads, writes, collective=Collective(kind, "data", size_bytes))

    def _look_up(self, part: str) -> None:
        """Add up the rows of each sample, and send the sums to who has the samples."""
        model, parts, sums = self.model, len(self.parts), [f"{part}/{name}.sum" for name in self.tables]
        for (name, counts), made in zip(self.tables.items(), sums, strict=True):
            self.graph.tensor(made, self.sums_bytes)
            lookups, reads = -(-counts.lookups // parts), [f"{part}/ids", f"{name}/cached", f"{name}/missed"]
            read_bytes = lookups * (model.row_bytes - model.row_state_bytes + _ID_BYTES)
            work = OpFields(read_bytes=read_bytes, flops=lookups * model.dim, device=self.device)
            self._op(f"{part}/fwd/{name}", reads, [made], **work)
        embeddings = [self._made(f"{part}/embeddings", (model.vectors - 1) * model.dim)]
        self._meet(f"{part}/fwd/embeddings", self.there, self.exchanged_bytes, sums, embeddings)

    def _forward(self, part: str) -> None:
        """Run the bottom perceptron beside the exchange, multiply all pairs of vectors, and run the top perceptron."""
        self.phase = "forward"
        for name, (inputs, outputs) in self.model.layers.items():
            if name == "top.0":
                self._multiply_pairs(f"{part}/fwd", 1, [], [self._made(f"{part}/features", inputs)])
            taken = [f"{part}/{self.inputs[name]}"] if self.inputs[name] else []
            made, flops = self._made(f"{part}/{name}.out", outputs), 2 * self.samples * inputs * outputs
            self._op(f"{part}/fwd/{name}", [*taken, f"{name}.weight"], [made], flops=flops)

    def _multiply_pairs(self, way: str, products: int, given: list[str], made: list[str]) -> None:
        """Multiply the vectors of each sample, all by all, of which half is used; or go back through that."""
        pairs, part = self.samples * self.model.vectors**2, way.partition("/")[0]
        sizes = OpFields(flops=2 * products * pairs * self.model.dim, workspace_bytes=pairs * self.dtypes.element_bytes)
        reads = [*given, f"{part}/{self.bottom_out}", f"{part}/embeddings"]
        self._op(f"{way}/interaction", reads, made, **sizes)

    def _backward(self, part: str) -> None:
        """Make the gradients of the top, of the sums, which go to who has the rows, and of the bottom."""
        self.phase, given = "backward", [f"{part}/{[*self.model.layers][-1]}.out"]
        for name, (inputs, outputs) in reversed(self.model.layers.items()):
            taken = [f"{part}/{self.inputs[name]}"] if self.inputs[name] else []
            made = [self._made(f"{tensor}.grad", inputs) for tensor in taken]
            earlier = [f"{name}.grad"] if part != self.parts[0] else []
            flops, reads = 2 * (1 + len(taken)) * self.samples * inputs * outputs, [*given, *taken, *earlier]
            self._op(f"{part}/bwd/{name}", [*reads, f"{name}.weight"], [*made, f"{name}.grad"], flops=flops)
            given = made
            if name == "top.0":
                given = [self._made(f"{part}/{self.bottom_out}.grad", self.model.dim)]
                grads = self._made(f"{part}/embeddings.grad", (self.model.vectors - 1) * self.model.dim)
                self._multiply_pairs(f"{part}/bwd", 2, made, [*given, grads])
                self.graph.tensor(f"{part}/sums.grad", len(self.tables) * self.sums_bytes)
                self._meet(f"{part}/bwd/embeddings", self.back, self.exchanged_bytes, [grads], [f"{part}/sums.grad"])

    def _update(self) -> None:
        """Update the rows that were touched, and the layers."""
        self.phase, model, grads = "update", self.model, [f"{part}/sums.grad" for part in self.parts]
        for name, counts in self.tables.items():
            changed_bytes, used = counts.touched * model.row_bytes, [f"{name}/cached", f"{name}/missed"]
            read_bytes = counts.lookups * (model.dim * self.dtypes.element_bytes + _ID_BYTES) + changed_bytes
            flops = (counts.lookups + _ROW_FLOPS * counts.touched) * model.dim
            work = OpFields(flops=flops, read_bytes=read_bytes, write_bytes=changed_bytes, device=self.device)
            self._op(f"update/{name}", [*grads, *used], used, **work)
        for name, count in model.layer_parameters.items():
            changed = [f"{name}.weight", f"{name}.optimizer_state"]
            self._op(f"update/{name}", [f"{name}.grad", *changed], changed, flops=ADAM_FLOPS * count)

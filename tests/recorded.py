"""Recordings by hand: small ones of each format, written as the tools write them, by nothing of hosim."""

from __future__ import annotations

import gzip
import json
import tarfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

DATA = next((root / "shared/data" for root in Path(__file__).parents if (root / "shared/data").is_dir()), None)
"""Published recordings, where they lie beside the project."""
ABSENT = "shared/data is not beside the project"


def tensor(number: int, storage: int, elements: int, device: str = "cuda:0", offset: int = 0) -> list[Any]:
    """A tensor of 4-byte elements."""
    return [number, storage, offset, elements, 4, device]


def node(
    number: int,
    parent: int,
    name: str,
    reads: list[Any] | None = None,
    writes: list[Any] | None = None,
    schema: str = "",
    shapes: tuple[list[Any], list[Any]] = ([], []),
    types: list[str] | None = None,
    **attrs: Any,
) -> dict[str, Any]:
    """A node of an execution trace of version 1.1.0-chakra.0.0.4."""
    types = types or ["Tensor(float)"] * len(reads or ())
    more = {"rf_id": number * 10, "op_schema": schema, "tid": 1, **attrs}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": reads or [], "shapes": shapes[0], "types": types},
        "outputs": {"values": writes or [], "shapes": shapes[1], "types": ["Tensor(float)"] * len(writes or ())},
        "attrs": [{"name": key, "type": "uint64", "value": value} for key, value in more.items()],
    }


MM = "aten::mm(Tensor self, Tensor mat2) -> Tensor"
ADD = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
VIEW = "aten::t(Tensor(a) self) -> Tensor(a)"
EMPTY = "aten::empty.memory_format(SymInt[] size) -> Tensor"
FILL = "aten::fill_.Scalar(Tensor(a!) self, Scalar value) -> Tensor(a!)"
RELU = "aten::relu(Tensor self) -> Tensor"

X, W, H, Y = tensor(101, 1, 8), tensor(102, 2, 64), tensor(103, 3, 8), tensor(104, 4, 8)
GRAD, DW = tensor(105, 5, 64), tensor(106, 6, 64)


def training() -> list[dict[str, Any]]:
    """A layer of 8 x 8 on one row: forward, backward, the gradient added to one that is there, and an update."""
    w_t, ones = tensor(112, 2, 64), tensor(107, 7, 8)
    return [
        node(1, 0, "[pytorch|profiler|execution_trace|process]"),
        node(2, 1, "[pytorch|profiler|execution_trace|thread]"),
        node(
            3, 2, "aten::linear", [X, W], [H], "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
        ),
        node(4, 3, "aten::t", [W], [w_t], VIEW),
        node(5, 3, "aten::mm", [X, w_t], [H], MM, ([[1, 8], [8, 8]], [[1, 8]])),
        node(6, 2, "aten::relu", [H], [Y], RELU),
        node(7, 2, "aten::ones_like", [Y], [ones], "aten::ones_like(Tensor self) -> Tensor"),
        node(8, 7, "aten::empty", [[8]], [ones], EMPTY, types=["GenericList[Int]"]),
        node(9, 7, "aten::fill_", [ones, 1], [ones], FILL, types=["Tensor(float)", "Int"]),
        node(10, 2, "autograd::engine::evaluate_function: MmBackward0"),
        node(11, 10, "MmBackward0"),
        node(12, 11, "aten::mm", [X, ones], [DW], MM, ([[8, 1], [1, 8]], [[8, 8]])),
        node(13, 2, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"),
        node(14, 13, "torch::autograd::AccumulateGrad"),
        node(15, 14, "aten::add_", [GRAD, DW, 1], [GRAD], ADD, types=["Tensor(float)", "Tensor(float)", "Int"]),
        node(16, 2, "Optimizer.step#SGD.step"),
        node(17, 16, "aten::add_", [W, GRAD, 1], [W], ADD, types=["Tensor(float)", "Tensor(float)", "Int"]),
    ]


def trace(nodes: list[dict[str, Any]], schema: str = "1.1.0-chakra.0.0.4") -> dict[str, Any]:
    """An execution trace; nodes are written once they end."""
    return {"schema": schema, "pid": 1, "time": "2026", "start_ts": 1, "nodes": nodes[::-1], "finish_ts": 2}


def old(found: dict[str, Any]) -> dict[str, Any]:
    """The same trace as version 1.0.1 wrote it, with all facts of a node beside each other."""
    nodes = []
    for one in found["nodes"]:
        facts = {attr["name"]: attr["value"] for attr in one["attrs"]}
        io = {f"{key[:-1]}_{part}": one[key][part] for key in ("inputs", "outputs") for part in ("shapes", "types")}
        sides = {key: one[key]["values"] for key in ("inputs", "outputs")}
        nodes.append({"id": one["id"], "name": one["name"], "parent": one["ctrl_deps"], **facts, **sides, **io})
    return {**found, "schema": "1.0.1", "nodes": nodes}


def saved(path: Path, what: Any) -> Path:
    """Write JSON."""
    path.write_text(json.dumps(what), encoding="utf-8")
    return path


class Profile:
    """A Kineto trace that grows; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "ts": 0}]
        self._next = 1

    def op(self, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> None:
        """An operator of the host."""
        self._event("cpu_op", name, ts, dur, 1, tid, args)

    def mark(self, number: int, ts: float, dur: float) -> None:
        """A step of the profiler."""
        self._event("user_annotation", f"ProfilerStep#{number}", ts, dur, 1, 1, {})

    def kernel(
        self,
        name: str,
        launch: float,
        ts: float,
        dur: float,
        stream: int = 7,
        cat: str = "kernel",
        call: float = 1,
        **args: Any,
    ) -> None:
        """A kernel, and the call by which the host launched it."""
        self._next += 1
        self._event("cuda_runtime", "cudaLaunchKernel", launch, call, 1, 1, {"correlation": self._next})
        self._event(cat, name, ts, dur, 0, stream, {"correlation": self._next, "stream": stream, "device": 0} | args)

    def call(self, name: str, ts: float, dur: float) -> int:
        """A call of the host, which may wait for the device."""
        self._next += 1
        self._event("cuda_runtime", name, ts, dur, 1, 1, {"correlation": self._next})
        return self._next

    def wait(self, ts: float, stream: int, source: int | None = None, marked: float = 0) -> None:
        """The host tells a stream to wait; perhaps it is recorded for which one, and when that was marked."""
        mark, wait = self.call("cudaEventRecord", marked, 1), self.call("cudaStreamWaitEvent", ts, 1)
        if source is not None:
            told = {"cuda_sync_kind": "Stream Wait Event", "stream": stream, "wait_on_stream": source}
            told |= {"correlation": wait, "wait_on_cuda_event_record_corr_id": mark}
            self._event("cuda_sync", "Stream Wait Event", ts, 1, 0, stream, told)

    def memory(self, ts: float, change: int, address: int, total: int = 0, kind: int = 1) -> None:
        """An allocation or its end."""
        args = {"Bytes": change, "Addr": address, "Total Allocated": total, "Device Type": kind, "Device Id": 0}
        self.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "args": args})

    def _event(self, cat: str, name: str, ts: float, dur: float, pid: int, tid: int, args: dict[str, Any]) -> None:
        times = {"ph": "X", "ts": ts, "dur": dur}
        self.events.append({**times, "cat": cat, "name": name, "pid": pid, "tid": tid, "args": args})

    @property
    def document(self) -> dict[str, Any]:
        """The trace."""
        return {"schemaVersion": 1, "deviceProperties": [], "traceEvents": self.events}


def of_1_9(document: dict[str, Any]) -> dict[str, Any]:
    """The same as PyTorch 1.9 wrote it: other categories, steps are operators, no addresses and no totals."""
    cats = {"gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cpu_op": "Operator", "cuda_runtime": "Runtime"}
    cats |= {"kernel": "Kernel", "user_annotation": "Operator"}
    events = [
        event | ({"cat": cats[event["cat"]]} if event.get("cat") in cats else {}) for event in document["traceEvents"]
    ]
    for event in events:
        event["args"] = {
            key: value for key, value in event.get("args", {}).items() if key not in ("Addr", "Total Allocated")
        }
    return {"schemaVersion": 1, "traceEvents": events}


def profiled() -> Profile:
    """What the kernels of `training` took, with ids of record functions: 5 ops launch, one of them twice."""
    found = Profile()
    launched = [("aten::mm", 5, 10), ("aten::relu", 6, 20), ("aten::fill_", 9, 30), ("aten::mm", 12, 40)]
    launched += [("aten::add_", 15, 50), ("aten::add_", 17, 60)]
    for name, number, at in launched:
        found.op(name, at, 8, **{"Record function id": number * 10, "External id": at})
    found.kernel("gemm", 11, 100, 10)
    found.kernel("void splitK<float>(int)", 12, 112, 3)
    found.kernel("relu_kernel", 21, 115, 5)
    found.kernel("fill", 31, 120, 1)
    found.kernel("gemm", 41, 130, 20)
    found.kernel("add", 51, 140, 15, stream=8)
    found.kernel("Memset (Device)", 59, 160, 2, cat="gpu_memset")
    found.kernel("add", 61, 165, 5)
    return found


def varint(number: int) -> bytes:
    """A whole number as protocol buffers write it."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes((*found, number))


def message(*fields: tuple[int, Any]) -> bytes:
    """A message of numbered fields: whole numbers, texts, or messages."""
    found = b""
    for number, value in fields:
        if isinstance(value, int):
            found += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            found += varint(number << 3 | 2) + varint(len(data)) + data
    return found


def chakra_node(
    number: int, name: str, kind: int = 4, after: tuple[int, ...] = (), took: int = 0, start: int = 0, **more: Any
) -> bytes:
    """A node of a Chakra trace; of `more` ``reads`` and ``writes`` are tensors, ``shapes`` theirs, else attributes."""
    shapes = more.pop("shapes", {})
    fields: list[tuple[int, Any]] = [(1, number), (2, name), (3, kind), (5, b"".join(map(varint, after)))]
    fields += [(6, start)] if start else []
    fields += [(7, took)] if took else []
    for field, key in ((8, "reads"), (9, "writes")):
        values = more.pop(key, [])
        fields.append(
            (
                field,
                message(
                    (1, str(values)),
                    (2, str(shapes.get(key, [[8]] * len(values)))),
                    (3, str(["Tensor(float)"] * len(values))),
                ),
            )
        )
    for key, value in more.items():
        code = 27 if isinstance(value, bool) else 29 if isinstance(value, str) else 9
        fields.append((10, message((1, key), (code, int(value) if isinstance(value, bool) else value))))
    return message(*fields)


def chakra(*nodes: bytes, version: str = "0.0.4") -> bytes:
    """A Chakra trace."""
    return b"".join(varint(len(one)) + one for one in (message((1, version)), *nodes))


# published recordings


@cache
def published(name: str) -> Any:
    """What a published file holds, without its packing: JSON, messages (of Chakra), or lines."""
    assert DATA is not None
    path = DATA / name
    if ".tar" in name:
        with tarfile.open(path) as archive:
            data = b"".join(file.read() for one in archive if (file := archive.extractfile(one)))
    else:
        data = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    if name.startswith("chakra/"):
        return messages(data)
    return data.decode().splitlines(keepends=True) if name.startswith("requests/") else json.loads(data)


def messages(data: bytes) -> list[bytes]:
    """The messages of a file of Chakra, each with its length before it."""
    found, start = [], 0
    while start < len(data):
        size = shift = 0
        at = start
        while True:
            size, shift, at = size | (data[at] & 127) << shift, shift + 7, at + 1
            if data[at - 1] < 128:
                break
        found.append(data[start : at + size])
        start = at + size
    return found


def piece(name: str, random: Random, most: int = 30) -> Any:
    """Some records of a published file that follow one another, behind its head, in the same shape."""
    found = published(name)
    if isinstance(found, dict):
        key = "nodes" if "nodes" in found else "traceEvents"
        return found | {key: _some(found[key], random, most)}
    return found[:1] + _some(found[1:], random, most)


def _some(records: list[Any], random: Random, most: int) -> list[Any]:
    start = random.randrange(len(records))
    return records[start : start + random.randrange(1, most)]

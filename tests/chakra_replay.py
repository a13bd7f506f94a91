"""Reads a trace of Chakra and runs it as ASTRA-sim does: three slots of a device, and of what is ready the lowest id.

It knows nothing of hosim: no plan, no room, no queue; only nodes, their dependencies, and a memory.
"""

from __future__ import annotations

import heapq
from pathlib import Path

LOAD, STORE = 2, 3


def varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        value, shift, offset = value | (byte & 127) << shift, shift + 7, offset + 1
        if byte < 128:
            return value, offset


def fields(data: bytes) -> list[tuple[int, int | bytes]]:
    offset, found = 0, []
    while offset < len(data):
        key, offset = varint(data, offset)
        value, offset = varint(data, offset)
        if key & 7 == 2:
            value, offset = data[offset : offset + value], offset + value
        found.append((key >> 3, value))
    return found


def messages(path: Path) -> list[list[tuple[int, int | bytes]]]:
    data, offset, found = path.read_bytes(), 0, []
    while offset < len(data):
        size, offset = varint(data, offset)
        found.append(fields(data[offset : offset + size]))
        offset += size
    return found


def nodes(path: Path) -> list[dict]:
    found = []
    for message in messages(path)[1:]:
        attributes = {}
        for key, value in message:
            if key == 10:
                (_, name), (_, content) = fields(value)
                attributes[name.decode()] = content
        one = dict(message)
        deps = [value for key, value in message if key == 5]
        found.append({"id": one[1], "name": one[2], "type": one[3], "deps": deps, "us": one[7], **attributes})
    return found


def replay_ns(path: Path, rate: int, latency_ns: int, factor: float = 1.0) -> int:
    """The time at which the last node ends, in the nanoseconds of hosim; `factor` is on the bandwidth."""
    listed = nodes(path)
    by_id = {node["id"]: node for node in listed}
    lacking = {node["id"]: len({*node["deps"]}) for node in listed}
    followers: dict[int, list[int]] = {}
    for node in listed:
        for other in {*node["deps"]}:
            followers.setdefault(other, []).append(node["id"])
    ready: dict[str, list[int]] = {"compute": [], "cpu": [], "other": []}
    slot_of = {
        node["id"]: "cpu" if node["is_cpu_op"] else "compute" if node["type"] not in (LOAD, STORE) else "other"
        for node in listed
    }
    for own, count in lacking.items():
        if not count:
            heapq.heappush(ready[slot_of[own]], own)
    running: dict[str, int] = {}
    ends: list[tuple[float, int]] = []
    now = 0.0
    done = 0
    while True:
        for slot, waiting in ready.items():
            if slot not in running and waiting:
                own = running[slot] = heapq.heappop(waiting)
                node = by_id[own]
                took = float(node["us"])
                if node["type"] in (LOAD, STORE):
                    took = latency_ns + node["tensor_size"] / (1000 * rate * factor)
                heapq.heappush(ends, (now + took, own))
        if not ends:
            break
        now = ends[0][0]
        while ends and ends[0][0] == now:
            own = heapq.heappop(ends)[1]
            done += 1
            del running[slot_of[own]]
            for other in followers.get(own, ()):
                lacking[other] -= 1
                if not lacking[other]:
                    heapq.heappush(ready[slot_of[other]], other)
    assert done == len(listed), "a node that never starts"
    return round(now)

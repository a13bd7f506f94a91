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


class Device:
    """Nodes in three slots, each of which runs one at a time."""

    def __init__(self, listed: list[dict]) -> None:
        self.by_id = {node["id"]: node for node in listed}
        self.lacking = {node["id"]: len({*node["deps"]}) for node in listed}
        self.followers: dict[int, list[int]] = {}
        for node in listed:
            for other in {*node["deps"]}:
                self.followers.setdefault(other, []).append(node["id"])
        self.ready: dict[str, list[int]] = {"compute": [], "cpu": [], "other": []}
        self.running: set[str] = set()
        for index in [index for index, count in self.lacking.items() if not count]:
            self.offer(index)

    def slot(self, index: int) -> str:
        node = self.by_id[index]
        return "cpu" if node["is_cpu_op"] else "other" if node["type"] in (LOAD, STORE) else "compute"

    def offer(self, index: int) -> None:
        heapq.heappush(self.ready[self.slot(index)], index)

    def start(self) -> list[int]:
        free = [slot for slot, waiting in self.ready.items() if waiting and slot not in self.running]
        self.running.update(free)
        return [heapq.heappop(self.ready[slot]) for slot in free]

    def end(self, index: int) -> None:
        self.running.remove(self.slot(index))
        for other in self.followers.get(index, ()):
            self.lacking[other] -= 1
            if not self.lacking[other]:
                self.offer(other)


def replay_ns(path: Path, rate: int, latency_ns: int, factor: float = 1.0) -> int:
    """The time at which the last node ends, in the nanoseconds of hosim; `factor` is on the bandwidth."""
    device, ends, now = Device(nodes(path)), [], 0.0
    while True:
        for index in device.start():
            node = device.by_id[index]
            is_copy = node["type"] in (LOAD, STORE)
            assert is_copy or node["us"] or node["num_ops"] == 0, "a compute without time that ASTRA-sim would not skip"
            took = latency_ns + node["tensor_size"] / (1000 * rate * factor) if is_copy else node["us"]
            heapq.heappush(ends, (now + took, index))
        if not ends:
            break
        now = ends[0][0]
        while ends and ends[0][0] == now:
            device.end(heapq.heappop(ends)[1])
    assert not any(device.lacking.values()), "a node that never starts"
    return round(now)

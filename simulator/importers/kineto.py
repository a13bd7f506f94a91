"""Kineto traces, as the PyTorch profiler writes them, and its raw memory timeline."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulator import garbage
from simulator.errors import ConfigError, insist
from simulator.graph import LARGEST
from simulator.importers.imported import Imported
from simulator.importers.recordings import Event, Recording, collective_kind, json_of, laid, short, whole
from simulator.inputs import shown
from simulator.units import counted, human

ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime"))
_STEP = "ProfilerStep#"
UNTIMED = "kernels, copies and fills whose ts or dur is no number from 0"
"""What is dropped under this name ran on a device, and neither the recorded step nor its replay has it."""


class Span(NamedTuple):
    """What ran somewhere from when to when.

    Attributes
    ----------
    start_ns, end_ns
        On the recording's clock [ns].
    name, cat
        What it was, and of which category.
    at
        Where: process and thread, of a kernel device and stream.
    args
        What else the trace says.
    """

    start_ns: int
    end_ns: int
    name: str
    cat: str
    at: tuple[str, str]
    args: dict[str, Any]


class Timeline:
    """A Kineto trace, sorted out.

    Parameters
    ----------
    path
        The file.

    Attributes
    ----------
    path
        The file.
    device, ops, marks
        What ran on devices; operators of the host; annotations of people. By start.
    memory
        Times, changes of size, addresses and sums of what was allocated on devices, in order of time; of the host if
        nothing ran on a device.
    launched
        Correlation -> when the host launched that, and on which thread.
    others
        Category of events that are not used -> how many.

    Raises
    ------
    ConfigError
        If the file is no such trace.
    """

    def __init__(self, path: Path) -> None:
        found = json_of(path)
        events = found.get("traceEvents") if isinstance(found, dict) else found
        self.path, where = path, shown(path)
        if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
            must, do = "a Kineto trace is an object with a list traceEvents", "choose another file"
            raise ConfigError(where, must, type(events).__name__, do)
        self.device, self.ops, self.marks = list[Span](), list[Span](), list[Span]()
        self._memory: dict[bool, list[tuple[int, int, int, int]]] = {False: [], True: []}
        self.launched, self.others = dict[int, tuple[int, tuple[str, str]]](), Counter[str]()
        for event in events:
            self._sort(event)
        must, do = "some of what ran on a device has times", "record it again"
        insist(self.device or not self.others[UNTIMED], where, must, f"{self.others[UNTIMED]:,} {UNTIMED}", do)
        devices = Counter(whole(span.args.get("device")) for span in self.device)
        busiest = max(devices, key=devices.__getitem__, default=0)
        self.others["what ran on other devices than the busiest"] += len(self.device) - devices[busiest]
        self.device = [span for span in self.device if whole(span.args.get("device")) == busiest]
        for spans in (self.device, self.ops, self.marks):
            spans.sort(key=lambda one: (one.start_ns, -one.end_ns))
        self.memory = sorted(self._memory[not self.device], key=lambda one: one[0])

    def _sort(self, event: dict[str, Any]) -> None:
        cat, name = str(event.get("cat", "")).lower()[:50], str(event.get("name", ""))
        args = event["args"] if isinstance(event.get("args"), dict) else {}
        start_ns, took_ns = _ns(event.get("ts")), _ns(event.get("dur"))
        if name == "[memory]":
            change = args.get("Bytes")
            if start_ns is not None and type(change) is int and whole(abs(change)):
                held, on_host = whole(args.get("Total Allocated")), args.get("Device Type") == 0
                self._memory[on_host].append((start_ns, change, whole(args.get("Addr")), held))
                return
        if event.get("ph") != "X":
            self.others[f"events {cat or name[:40]!r}" if event.get("ph") != "M" else "names of threads"] += 1
            return
        if start_ns is None or took_ns is None:
            self.others[UNTIMED if cat in ON_DEVICE else f"events {cat!r} whose ts or dur is no number from 0"] += 1
            return
        at = str(event.get("pid"))[:50], str(args.get("stream", event.get("tid")))[:50]
        span = Span(start_ns, start_ns + took_ns, name, cat, at, args)
        if cat in ON_DEVICE:
            self.device.append(span)
        elif cat == "cpu_op":
            self.ops.append(span)
        elif cat == "user_annotation":
            self.marks.append(span)
        elif cat in _CALLS:
            self.launched[whole(args.get("correlation"))] = start_ns, at
        else:
            self.others[f"events {cat or 'without a category'!r}"] += 1

    def launch_ns(self, span: Span) -> int:
        """When the host launched it; when it began, if that is not known [ns]."""
        return self.launched.get(whole(span.args.get("correlation")), (span.start_ns,))[0]

    @property
    def steps(self) -> list[Span]:
        """Steps that the profiler was told of."""
        return [mark for mark in self.marks if mark.name.startswith(_STEP)]


def _ns(microseconds: Any) -> int | None:
    """A time of the trace [ns]; None if it is no number from 0, such as a text of one."""
    is_time = type(microseconds) in (int, float) and 0 <= microseconds < 2**53
    return int(microseconds) * 1000 + round(float(microseconds) % 1 * 1000) if is_time else None


@garbage.kept()
def read_kineto(source: str | Path, *, step: int | None = None) -> Imported:
    """Read a Kineto trace: what ran on the device, and what was allocated, as a graph with measured times.

    Parameters
    ----------
    source
        The trace (JSON, also packed).
    step
        Number of the ``ProfilerStep`` that is taken; default: the last one that another one follows.

    Raises
    ------
    ConfigError
        If the file is no Kineto trace, has no such step, or in it nothing ran on a device.
    """
    timeline, recording = Timeline(Path(source)), Recording()
    spans, window, end_ns = _one_step(timeline, recording, step)
    ops = lay(recording, spans, [None] * len(spans), ())
    if end_ns > (last := spans[0].start_ns + recording.step_ns):
        recording.ops.append(host(end_ns - last))
        recording.step_ns += end_ns - last
    begins = sorted((timeline.launch_ns(span), number) for number, span in enumerate(spans))
    ends = begins if timeline.device else sorted((span.end_ns, number) for number, span in enumerate(spans))
    _remember([one for one in timeline.memory if window[0] <= one[0] < window[1]], recording, (begins, ends), ops)
    recording.dropped.update(timeline.others)
    recording.dropped["operators of the host"] += len(timeline.ops)
    return recording.imported(timeline.path, "A step")


def _one_step(timeline: Timeline, recording: Recording, step: int | None) -> tuple[list[Span], tuple[int, int], int]:
    """What ran on the device in one step; when the host was at it; and when the next step began on the device [ns]."""
    where, marks = shown(timeline.path), timeline.steps
    spans, all_of_it = timeline.device or _outermost(timeline.ops), (0, 1 << 62)
    if not timeline.device:
        recording.derived.append("Nothing ran on a device: the outermost operators of the host are the ops.")
    must, do = "something runs in a recording", "profile with the activities of the device"
    insist(spans, where, must, "neither kernels, nor operators of the host", do)
    if not marks:
        must, do = "the step that is asked for was marked by the profiler", "leave --step out, or call profiler.step()"
        insist(step is None, where, must, "no ProfilerStep", do)
        recording.derived.append("The profiler marked no steps: all that is recorded is one step.")
        return spans, all_of_it, 0
    names = [mark.name.removeprefix(_STEP) for mark in marks]
    number = max(0, len(marks) - 2) if step is None else names.index(str(step)) if str(step) in names else -1
    insist(number >= 0, where, "the step is one that the profiler marked", str(step), f"choose of {', '.join(names)}")
    window = marks[number].start_ns, marks[number + 1].start_ns if number + 1 < len(marks) else 1 << 62
    mine = [span for span in spans if window[0] <= timeline.launch_ns(span) < window[1]]
    found = f"nothing launched in {marks[number].name}"
    insist(mine, where, "something runs in the step", found, "choose another --step")
    later = [span.start_ns for span in spans if timeline.launch_ns(span) >= window[1]]
    recording.derived.append(f"The step is {marks[number].name} of {counted(len(marks), 'marked step')} (--step).")
    recording.dropped["what ran in other steps"] += len(spans) - len(mine)
    return mine, window, min(later, default=0)


def _outermost(spans: Iterable[Span]) -> list[Span]:
    """Spans that no span of the same thread holds."""
    ends: dict[tuple[str, str], int] = defaultdict(int)
    found = []
    for span in spans:
        if span.start_ns >= ends[span.at]:
            found.append(span)
            ends[span.at] = span.end_ns
    return found


def host(took_ns: int) -> Event:
    """Make an op in which the device does nothing for so long [ns]."""
    return Event("host", more={"duration_ns": took_ns, "repeatable": False})


def lay(
    recording: Recording, spans: Sequence[Span], owners: Sequence[Event | None], ops: Iterable[Event]
) -> list[Event]:
    """Give ops the times of their spans, laid on one stream, and let the host take those in which nothing ran.

    Parameters
    ----------
    recording
        Takes the ops, the length of the step, and what is told of them.
    spans
        By start.
    owners
        Span for span, the op that it is a part of; what is of none becomes an op of its own.
    ops
        In program order; those that own no span take no time.

    Returns
    -------
    list of Event
        Span for span, its op.
    """
    pieces = list(laid((span.start_ns, span.end_ns) for span in spans))
    before, loose, found = defaultdict[int, list[Event]](list), list[Event](), list[Event]()
    for op in ops:
        op.more["duration_ns"] = 0
    for (gap_ns, took_ns), span, owner in zip(pieces, spans, owners, strict=True):
        loose += [host(gap_ns)] if gap_ns else []
        found.append(owner or event_of(span, took_ns))
        if owner is None:
            loose.append(found[-1])
        else:
            owner.more["duration_ns"] = (owner.more["duration_ns"] or 0) + took_ns
            before[id(owner)] += loose
            loose = []
    recording.ops = [one for op in ops for one in (*before[id(op)], op)] + loose
    recording.step_ns = max(span.end_ns for span in spans) - spans[0].start_ns
    _tell(recording, spans, pieces)
    return found


def _tell(recording: Recording, spans: Sequence[Span], pieces: Sequence[tuple[int, int]]) -> None:
    """Say what was laid on one stream, and how."""
    lost, busy, idle_ns = Counter[str](), Counter[str](), sum(gap for gap, _ in pieces)
    for span, (_, took_ns) in zip(spans, pieces, strict=True):
        busy[span.at[1]] += span.end_ns - span.start_ns
        lost[span.at[1]] += span.end_ns - span.start_ns - took_ns
    copied = [whole(span.args.get("bytes")) for span in spans if span.cat == "gpu_memcpy"]
    recording.kept["kernels, copies, fills"] = f"{len(spans):,} on {counted(len({one.at for one in spans}), 'stream')}"
    if copied:
        moved = f"{len(copied):,} of {human(sum(copied), 'B')}"
        recording.kept["recorded copies"] = f"{moved}, as ops of their recorded time"
    if hidden_ns := lost.total():
        most = [f"{human(ns, 'ns')} of {human(busy[at], 'ns')} on stream {at}" for at, ns in lost.most_common(3) if ns]
        share = f"{human(hidden_ns, 'ns')} ({100 * hidden_ns / busy.total():.1f} %) hid; {', '.join(most)}"
        recording.derived.append(f"What overlaps counts from the end of what began before it: {share}.")
    if idle_ns:
        recording.derived.append(f"The device was idle for {human(idle_ns, 'ns')}, which the ops 'host' take.")


def event_of(span: Span, took_ns: int) -> Event:
    """Make the op of a span that takes so long [ns]; a kernel of NCCL is a collective of recorded time."""
    named = span.args.get("Collective name") or span.name.removeprefix("ncclDevKernel_").removeprefix("ncclKernel_")
    is_collective = "nccl" in span.name.lower() and collective_kind(named) is not None
    event = Event(short(span.name), is_collective=is_collective)
    event.more["duration_ns"] = took_ns
    return event


def _remember(
    changes: Sequence[tuple[int, int, int, int]],
    recording: Recording,
    launches: tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]],
    ops: Sequence[Event],
) -> None:
    """Give ops what was allocated and freed between their launches, or while they ran on the host.

    `launches` are when they began and ended there, each with the number of the op, by time.
    """
    begins, ends = launches
    if not changes:
        return
    text = "The first op launched after an allocation writes it, the last one before its end reads it."
    recording.derived.append(text)
    held = before = max(0, changes[0][3] - changes[0][1])
    live: dict[int, tuple[int, int]] = {}
    for at_ns, change, address, _ in changes:
        begun, ended = (bisect_left(times, (at_ns, 0)) for times in launches)
        held += change
        recording.peak_bytes = max(recording.peak_bytes, held)
        if change > 0 and ended < len(ends):
            live[address] = first, storage = ends[ended][1], recording.storage(change)
            ops[first].writes[storage] = None
        elif change < 0:
            first, storage = live.pop(address, (0, -1))
            if storage < 0:
                storage, before = recording.storage(-change, "input"), before + change
            last = ops[max(first, begins[max(0, begun - 1)][1])]
            if storage not in last.writes:
                last.reads[storage] = None
    for _, storage in live.values():
        recording.storages[storage].stays = True
    if before > 0:
        recording.ops[0].reads[recording.storage(before, "weight", persistent=True)] = None
        recording.derived.append("What was allocated before the step and stays is one tensor, of kind weight.")


_CATEGORIES = ("weight", "optimizer_state", "input", "workspace", "activation", "gradient", "activation", "activation")
"""Kinds for what the profiler calls parameter, optimizer state, input, temporary, activation, gradient, autograd
detail, and what it does not know."""
_PREEXISTING, _CREATE, _CHANGE, _DESTROY = 1, 2, 3, 4


@garbage.kept()
def read_memory_timeline(source: str | Path) -> Imported:
    """Read a raw memory timeline (``export_memory_timeline`` to ``.raw.json.gz``): what lived when, op for instant.

    Parameters
    ----------
    source
        The timeline: a list of [time in ns, action, change in bytes, category].

    Raises
    ------
    ConfigError
        If the file is none.
    """
    path, recording = Path(source), Recording()
    rows = json_of(path)
    must, do = "a raw memory timeline is a list of [time, action, bytes, category]", "export it again"
    is_list = isinstance(rows, list) and all(_is_row(row) for row in rows) and any(row[0] >= 0 for row in rows)
    insist(is_list, shown(path), must, "something else", do)
    rows.sort(key=lambda row: row[0])
    times = sorted({row[0] for row in rows if row[0] >= 0})
    instants = {time: number for number, time in enumerate(times)}
    for now, then in zip(times, times[1:] + times[-1:], strict=True):
        recording.ops.append(host(then - now))
    live: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    held, changed = 0, list[tuple[int, int]]()
    for time, action, change, category in rows:
        size, at = abs(change), instants.get(time, 0)
        held += change
        recording.peak_bytes = max(recording.peak_bytes, held)
        if action == _CHANGE and change > 0 and changed:
            live[size, category].append(changed.pop())
            recording.storages[live[size, category][-1][1]].kind = _CATEGORIES[category]
        elif action in (_PREEXISTING, _CREATE, _CHANGE) and change > 0:
            made = at if action == _CREATE else -1
            live[size, category].append((made, recording.storage(size, _CATEGORIES[category])))
        elif found := live[size, category]:
            made, storage = found.pop()
            if action == _CHANGE:
                changed.append((made, storage))
                continue
            _live_between(recording, storage, made, at)
        else:
            recording.dropped["ends of what never began"] += 1
    for made, storage in (one for found in live.values() for one in found):
        recording.storages[storage].stays = True
        recording.storages[storage].persistent = made < 0
        (recording.ops[0].reads if made < 0 else recording.ops[made].writes)[storage] = None
    recording.step_ns = times[-1] - times[0]
    recording.kept["changes"] = f"{len(rows):,} at {counted(len(times), 'instant')}"
    recording.derived.append("The timeline has no ops: from each instant to the next is one, which the host takes.")
    recording.derived.append("It has no ids: an end is that of the latest of its size and category.")
    return recording.imported(path, "The memory timeline")


def _is_row(row: Any) -> bool:
    is_row = isinstance(row, list) and len(row) == 4 and all(type(one) is int and abs(one) <= LARGEST for one in row)
    return is_row and row[0] >= -1 and row[1] in range(1, 5) and row[3] in range(8)


def _live_between(recording: Recording, storage: int, made: int, freed: int) -> None:
    """Let a storage live from one instant to another; what existed before has made < 0."""
    if freed in (made, 0):
        recording.dropped["what lived for no time"] += 1
        return
    if made < 0:
        recording.storages[storage].kind = "input"
        recording.ops[freed - 1].reads[storage] = None
        return
    recording.ops[made].writes[storage] = None
    if freed - 1 > made:
        recording.ops[freed - 1].reads[storage] = None

"""Kineto traces, as the PyTorch profiler writes them."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import insist
from simulator.graph import LARGEST
from simulator.importers.imported import FACTS, Imported
from simulator.importers.recordings import Event, Recording, collective_kind, objects, records_of, short, whole
from simulator.importers.streams import Activity, Calls, Wait, replay
from simulator.inputs import shown
from simulator.interrupts import no_garbage_search
from simulator.units import counted, human

_ON_DEVICE, _CALLS = (frozenset(FACTS["kineto"][part].split()) for part in ("device", "calls"))
_OLD, _FACTS = FACTS["kineto"]["old"], FACTS["kineto"]["facts"]
STEP = "ProfilerStep#"
"""Prefix of the profiler's marks of steps."""
# Names of calls by which the host waits for the device, and of those that make a stream wait.
_SYNCS, _WAITS = re.compile("Synchronize|Memcpy(?!.*Async)|(Free|Malloc)$"), re.compile("StreamWaitEvent")
UNTIMED = "kernels, copies and fills whose ts or dur is no number from 0"
"""Name of dropped spans of a device; they are missing from the recorded step and from its replay."""


class TimelineSpan(NamedTuple):
    """A span of a recording.

    Attributes
    ----------
    thread
        Process and thread; for a kernel, device and stream.
    args
        The facts that `_FACTS` names.
    """

    start_ns: int
    end_ns: int
    name: str
    cat: str
    thread: tuple[str, str]
    args: dict[str, Any]

    @property
    def correlation(self) -> int:
        """The id that a kernel shares with the call that launched it; 0 if it has none."""
        return whole(self.args.get("correlation"))


Spans = list[TimelineSpan]
"""Spans in order of their start."""


class Timeline:
    """A Kineto trace, with its events sorted by kind.

    Parameters
    ----------
    path
        The file.

    Attributes
    ----------
    device, ops, marks
        Spans of the device, operators of the host, and user annotations, by start.
    memory
        Allocations on devices (on the host if nothing ran on a device), by time: time, change of size, address and
        total.
    launched
        Correlation -> call of the host.
    others
        Category of unused events -> their number.

    Raises
    ------
    ConfigError
        If the file is no such trace.
    """

    def __init__(self, path: Path) -> None:
        content, where = records_of(path), shown(path)
        events: Any = content.get("traceEvents") if isinstance(content, dict) else content
        must, do = "a Kineto trace is an object with a list traceEvents", "choose another file"
        found = "none" if isinstance(content, dict) else type(content).__name__
        insist(isinstance(events, list), where, must, found, do)
        self.path, self.device, self.ops, self.marks = path, Spans(), Spans(), Spans()
        self._memory = defaultdict[int, list[tuple[int, int, int, int]]](list)  # by device; -1 is the host
        self.launched, self.others = dict[int, TimelineSpan](), Counter[str]()
        self._stream_waits = dict[int, dict[str, Any]]()  # by correlation
        for event in objects(events, f"{where}: traceEvents", "an event is an object"):
            self._add(event)
        must, do = "some op of a device has times", "record it again"
        insist(self.device or not self.others[UNTIMED], where, must, f"{self.others[UNTIMED]:,} {UNTIMED}", do)
        devices = Counter(whole(span.args.get("device")) for span in self.device)
        busiest = max(devices, key=devices.__getitem__, default=0)
        self.others["ops of other devices than the busiest"] += len(self.device) - devices[busiest]
        self.device = [span for span in self.device if whole(span.args.get("device")) == busiest]
        for spans in (self.device, self.ops, self.marks):
            spans.sort(key=lambda span: (span.start_ns, -span.end_ns))
        of_host, at_most = self._memory.pop(-1, []), max(self._memory.values(), key=len, default=[])
        of_device = self._memory.get(busiest, at_most)  # ids of kernels and allocations need not be the same
        self.memory = sorted(of_device if self.device else of_host, key=itemgetter(0))

    def _add(self, event: dict[str, Any]) -> None:
        cat, name = str(event.get("cat", "")).lower()[:50], str(event.get("name", ""))
        cat, args = _OLD.get(cat, cat), event["args"] if isinstance(event.get("args"), dict) else {}
        start_ns, took_ns, change = _ns(event.get("ts")), _ns(event.get("dur")), args.get("Bytes")
        if name == "[memory]" and start_ns is not None and type(change) is int and whole(abs(change)):
            device = -1 if args.get("Device Type") == 0 else whole(args.get("Device Id"))
            held = whole(args.get("Total Allocated"))
            self._memory[device].append((start_ns, change, whole(args.get("Addr")), held))
            return
        if event.get("ph") != "X":
            self.others[f"events {cat or name[:40]!r}" if event.get("ph") != "M" else "names of threads"] += 1
            return
        if start_ns is None or took_ns is None:
            self.others[UNTIMED if cat in _ON_DEVICE else f"events {cat!r} whose ts or dur is no number from 0"] += 1
            return
        thread = sys.intern(str(event.get("pid"))[:50]), sys.intern(str(args.get("stream", event.get("tid")))[:50])
        facts = {key: args[key] for key in _FACTS if key in args}
        span = TimelineSpan(start_ns, start_ns + took_ns, sys.intern(name), sys.intern(cat), thread, facts)
        if cat in _ON_DEVICE:
            self.device.append(span)
        elif cat == "user_annotation" or (cat == "cpu_op" and name.startswith(STEP)):
            self.marks.append(span)
        elif cat == "cpu_op":
            self.ops.append(span)
        elif cat in _CALLS:
            self.launched[span.correlation] = span
        elif args.get("cuda_sync_kind") == "Stream Wait Event":
            self._stream_waits[span.correlation] = args
        else:
            self.others[f"events {cat or 'without a category'!r}"] += 1

    def launch_ns(self, span: TimelineSpan) -> int:
        """Return the time at which the host launched a span; its start if that is unknown [ns]."""
        return self.launched.get(span.correlation, span).start_ns

    def activities(self, spans: Sequence[TimelineSpan], ops: Iterable[Event]) -> Iterator[Activity]:
        """Join each span with its op; its launch is the end of the launching call, or its start if that outlasts it."""
        for span, op in zip(spans, ops, strict=False):
            call = self.launched.get(span.correlation) if self.device else None
            launched_ns = call and min(call.start_ns if self._waiting_for(span) else call.end_ns, span.start_ns)
            yield Activity(op, span.start_ns, span.end_ns, span.thread[1] if self.device else "", launched_ns)

    def _waiting_for(self, span: TimelineSpan) -> TimelineSpan | None:
        """Return the call that launched a copy and waited for its end, as with pageable memory; None of others."""
        call = self.launched.get(span.correlation) if span.cat == "gpu_memcpy" else None
        return call if call and span.end_ns <= call.end_ns else None

    @property
    def calls(self) -> Calls:
        """Other calls of the host: those that wait for the device, and those that make one stream wait for another."""
        synced = [call for call in self.launched.values() if _SYNCS.search(call.name)]
        synced += filter(None, map(self._waiting_for, self.device))
        syncs, waits = [(call.start_ns, call.end_ns) for call in synced], list[Wait]()
        for correlation, call in self.launched.items():
            if _WAITS.search(call.name):
                wait = self._stream_waits.get(correlation, {})
                record = self.launched.get(whole(wait.get("wait_on_cuda_event_record_corr_id")), call)
                streams = str(wait.get("stream", "")), str(wait.get("wait_on_stream", ""))
                waits.append((call.start_ns, *streams, record.start_ns))
        return syncs, waits


def _ns(microseconds: Any) -> int | None:
    """Return a time of the trace [ns]; None if it is no number from 0 (a number in quotes is none)."""
    is_time = type(microseconds) in (int, float) and 0 <= microseconds < 2**53
    return int(microseconds) * 1000 + round(float(microseconds) % 1 * 1000) if is_time else None


@no_garbage_search()
def read_kineto(source: str | Path, *, step: int | None = None) -> Imported:
    """Read a Kineto trace: the device's kernels and allocations, as a graph with measured times.

    Parameters
    ----------
    source
        The trace (JSON, perhaps compressed).
    step
        Number of the ``ProfilerStep`` to read; default: the last one that is followed by another.

    Raises
    ------
    ConfigError
        If the file is no Kineto trace, has no such step, or nothing ran in it.
    """
    timeline, recording = Timeline(Path(source)), Recording()
    spans, window_ns, later = _spans_of_step(timeline, recording, step)
    ops, following = list(map(event_of, spans)), timeline.activities(later[:1], [Event("")])
    replay(recording, timeline.activities(spans, ops), (), timeline.calls, next(following, None))
    report_spans(spans, recording)
    _add_memory(timeline, spans, ops, window_ns, recording)
    recording.dropped.update(timeline.others)
    recording.dropped["operators of the host"] += len(timeline.ops)
    del timeline, spans, later, following, ops  # they take as much memory as the file
    return recording.imported(Path(source), "A step")


def _spans_of_step(timeline: Timeline, recording: Recording, step: int | None) -> tuple[Spans, range, Spans]:
    """Return the spans of one step, the period in which the host launched them [ns], and the spans of later steps."""
    where, spans = shown(timeline.path), timeline.device or _outermost(timeline.ops)
    if not timeline.device:
        recording.derived.append("Nothing ran on a device: the outermost operators of the host are the ops.")
    must, do = "something runs in a recording", "profile with the activities of the device"
    insist(spans, where, must, "neither kernels, nor operators of the host", do)
    marks = [(mark.name, mark.start_ns) for mark in timeline.marks if mark.name.startswith(STEP)]
    name, window_ns = chosen_step(marks, step, where, recording)
    recording.marked_ns = len(window_ns) if window_ns.stop < LARGEST else 0
    of_step = [span for span in spans if timeline.launch_ns(span) in window_ns]
    insist(of_step, where, "something runs in the step", f"nothing in {name}", "choose another --step")
    recording.dropped["ops of other steps"] += len(spans) - len(of_step)
    return of_step, window_ns, [span for span in spans if timeline.launch_ns(span) >= window_ns.stop]


def chosen_step(
    marks: Sequence[tuple[str, int]], step: int | None, where: str, recording: Recording
) -> tuple[str, range]:
    """Choose one of the steps that the profiler marked; return its name and range (everything if it marked none).

    Parameters
    ----------
    marks
        Names and starts of the marks, in order.
    step
        Number of the step; None: the last one that is followed by another.
    where, recording
        The trace, for messages; collects a sentence about the choice.

    Raises
    ------
    ConfigError
        If no such step was marked.
    """
    if not marks:
        must, do = "the step that is asked for was marked by the profiler", "leave --step out, or call profiler.step()"
        insist(step is None, where, must, "no ProfilerStep", do)
        recording.derived.append("The profiler marked no steps: all that is recorded is one step.")
        return "", range(LARGEST)
    names, must = [name.removeprefix(STEP) for name, _ in marks], "the step is one that the profiler marked"
    insist(step is None or str(step) in names, where, must, str(step), f"choose of {', '.join(names)}")
    chosen = max(0, len(marks) - 2) if step is None else names.index(str(step))
    (name, begin), (_, end) = [*marks, ("", LARGEST)][chosen : chosen + 2]
    recording.derived.append(f"The step is {name} of {counted(len(marks), 'marked step')} (--step).")
    return name, range(begin, end)


def report_spans(spans: Sequence[TimelineSpan], recording: Recording) -> None:
    """Report the number of spans, and the number and bytes of copies among them."""
    copied = [whole(span.args.get("bytes")) for span in spans if span.cat == "gpu_memcpy"]
    copies = f", of which {len(copied):,} copies of {human(sum(copied), 'B')}" if copied else ""
    streams = counted(len({span.thread for span in spans}), "stream")
    recording.kept["kernels, copies, fills"] = f"{len(spans):,} on {streams}{copies}"


def _outermost(spans: Spans) -> Spans:
    """Return the spans that lie in no other span of their thread."""
    ends_ns, outermost = defaultdict[tuple[str, str], int](int), Spans()
    for span in spans:
        if span.start_ns >= ends_ns[span.thread]:
            outermost.append(span)
            ends_ns[span.thread] = span.end_ns
    return outermost


def event_of(span: TimelineSpan) -> Event:
    """Make the op of a span; an NCCL kernel becomes a collective of recorded duration."""
    name = span.args.get("Collective name") or span.name.removeprefix("ncclDevKernel_").removeprefix("ncclKernel_")
    return Event(short(span.name), is_collective="nccl" in span.name.lower() and collective_kind(name) is not None)


def _add_memory(timeline: Timeline, spans: Spans, ops: list[Event], window_ns: range, recording: Recording) -> None:
    """Assign to ops the storages allocated and freed between their launches, or while they ran on the host."""
    changes = [change for change in timeline.memory if change[0] in window_ns]
    if not changes:
        return
    begins = sorted((timeline.launch_ns(span), index) for index, span in enumerate(spans))
    ends = begins if timeline.device else sorted((span.end_ns, index) for index, span in enumerate(spans))
    recording.derived.append("The next op launched writes an allocation; the last one before its free reads it.")
    of_stream = defaultdict[int, list[tuple[int, int]]](list)
    for begin in begins:
        of_stream[ops[begin[1]].more.get("stream", 0)].append(begin)
    if not changes[0][3]:
        text = "The recording states no totals: of the memory before it, only the freed part is known."
        recording.derived.append(text)
    held = before = max(0, changes[0][3] - changes[0][1]) if changes[0][3] else _held(timeline, window_ns)
    live = defaultdict[int, list[tuple[int, int]]](list)  # by address, or by size if none is told: the newest last
    for time_ns, change, address, total in changes:
        held = total or held + change
        recording.peak_bytes, place = max(recording.peak_bytes, held), address or -abs(change)
        if change > 0 and (following := bisect_left(ends, (time_ns, 0))) < len(ends):
            live[place].append((change, ends[following][1]))
        elif change < 0:
            size, first = live[place].pop() if live[place] else (-change, -1)
            before += change if first < 0 else 0
            launched = begins if first < 0 else of_stream[ops[first].more.get("stream", 0)]
            last = max(first, launched[max(0, bisect_left(launched, (time_ns, 0)) - 1)][1])
            recording.add_lifetime(size, ops[first] if first >= 0 else None, ops[last])
    for size, first in (stay for stays in live.values() for stay in stays):
        recording.add_lifetime(size, ops[first], None)
    if before > 0:
        recording.add_lifetime(before, None, None)
        recording.derived.append("Memory allocated before the step that stays is one tensor, of kind weight.")


def _held(timeline: Timeline, window_ns: range) -> int:
    """Return what a trace without totals knows to be allocated before a step: by itself, or by what it frees later."""
    live, held = Counter[int](), 0
    for time_ns, change, *_ in timeline.memory:
        held += change if time_ns < window_ns.start else 0
        if change < 0 and not live[-change]:
            held -= change
        else:
            live[abs(change)] += 1 if change > 0 else -1
    return held

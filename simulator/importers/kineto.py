"""Kineto traces, as the PyTorch profiler writes them, and its raw memory timeline."""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from simulator.errors import insist
from simulator.graph import LARGEST
from simulator.importers.imported import Imported
from simulator.importers.recordings import Event, Recording, collective_kind, json_of, objects, records_of, short, whole
from simulator.importers.streams import Activity, Calls, Wait, lay
from simulator.inputs import LONGEST_LINE_BYTES, shown
from simulator.interrupts import no_garbage_search
from simulator.units import counted, human

ON_DEVICE = frozenset(("kernel", "gpu_memcpy", "gpu_memset"))
_CALLS = frozenset(("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime"))
STEP = "ProfilerStep#"  # what the profiler calls a step that it marked
_SYNCS = re.compile("Synchronize|Memcpy(?!.*Async)|(Free|Malloc)$")
_WAITS = re.compile("StreamWaitEvent")
UNTIMED = "kernels, copies and fills whose ts or dur is no number from 0"
"""What is dropped under this name ran on a device, and neither the recorded step nor its replay has it."""


class TimelineSpan(NamedTuple):
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
        Correlation -> the call by which the host launched that.
    others
        Category of events that are not used -> how many.

    Raises
    ------
    ConfigError
        If the file is no such trace.
    """

    def __init__(self, path: Path) -> None:
        found = records_of(path)
        events: Any = found.get("traceEvents") if isinstance(found, dict) else found
        self.path, where = path, shown(path)
        must, do = "a Kineto trace is an object with a list traceEvents", "choose another file"
        insist(isinstance(events, list), where, must, type(events).__name__, do)
        self.device, self.ops, self.marks = list[TimelineSpan](), list[TimelineSpan](), list[TimelineSpan]()
        self._memory: dict[bool, list[tuple[int, int, int, int]]] = {False: [], True: []}
        self.launched, self.others = dict[int, TimelineSpan](), Counter[str]()
        self._told_waits = list[dict[str, Any]]()
        for event in objects(events, f"{where}: traceEvents", "an event is an object"):
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
        at = sys.intern(str(event.get("pid"))[:50]), sys.intern(str(args.get("stream", event.get("tid")))[:50])
        span = TimelineSpan(start_ns, start_ns + took_ns, sys.intern(name), sys.intern(cat), at, args)
        if cat in ON_DEVICE:
            self.device.append(span)
        elif cat == "cpu_op":  # shapes of what it reads would take a multiple of the file
            self.ops.append(span._replace(args={"Record function id": args.get("Record function id")}))
        elif cat == "user_annotation":
            self.marks.append(span)
        elif cat in _CALLS:
            self.launched[whole(args.get("correlation"))] = span
        elif args.get("cuda_sync_kind") == "Stream Wait Event":
            self._told_waits.append(args)
        else:
            self.others[f"events {cat or 'without a category'!r}"] += 1

    def launch_ns(self, span: TimelineSpan) -> int:
        """When the host launched it; when it began, if that is not known [ns]."""
        return self.launched.get(whole(span.args.get("correlation")), span).start_ns

    def ran(self, spans: Sequence[TimelineSpan], ops: Iterable[Event]) -> list[Activity]:
        """What ran, span for span with its op; launched is what starts, or whose call ends, whichever is sooner."""
        stream, found = "stream" if self.device else "", list[Activity]()
        for span, op in zip(spans, ops, strict=False):
            call = self.launched.get(whole(span.args.get("correlation"))) if self.device else None
            launched_ns = min(call.end_ns, span.start_ns) if call else None
            found.append(Activity(op, span.start_ns, span.end_ns, stream and span.at[1], launched_ns))
        return found

    @property
    def calls(self) -> Calls:
        """What else the host asked of the device."""
        syncs = [(call.start_ns, call.end_ns) for call in self.launched.values() if _SYNCS.search(call.name)]
        told, waits = {whole(about.get("correlation")): about for about in self._told_waits}, list[Wait]()
        for number, call in self.launched.items():
            if _WAITS.search(call.name):
                about = told.get(number, {})
                record = self.launched.get(whole(about.get("wait_on_cuda_event_record_corr_id")), call)
                stream, source = str(about.get("stream", "")), str(about.get("wait_on_stream", ""))
                waits.append((call.start_ns, stream, source, record.start_ns))
        return syncs, waits


def _ns(microseconds: Any) -> int | None:
    """A time of the trace [ns]; None if it is no number from 0, such as a text of one."""
    is_time = type(microseconds) in (int, float) and 0 <= microseconds < 2**53
    return int(microseconds) * 1000 + round(float(microseconds) % 1 * 1000) if is_time else None


@no_garbage_search()
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
    spans, window, later = _one_step(timeline, recording, step)
    ops, following = [event_of(span) for span in spans], timeline.ran(later[:1], [Event("")])
    lay(recording, timeline.ran(spans, ops), (), timeline.calls, *following)
    tell_spans(spans, recording)
    begins = sorted((timeline.launch_ns(span), number) for number, span in enumerate(spans))
    ends = begins if timeline.device else sorted((span.end_ns, number) for number, span in enumerate(spans))
    _remember([one for one in timeline.memory if window[0] <= one[0] < window[1]], recording, (begins, ends), ops)
    recording.dropped.update(timeline.others)
    recording.dropped["operators of the host"] += len(timeline.ops)
    del timeline, spans, later, begins, ends, ops  # which take as much memory as the file
    return recording.imported(Path(source), "A step")


def _one_step(
    timeline: Timeline, recording: Recording, step: int | None
) -> tuple[list[TimelineSpan], tuple[int, int], list[TimelineSpan]]:
    """What ran on the device in one step; when the host was at it [ns]; and what it launched later."""
    where, marks = shown(timeline.path), [mark for mark in timeline.marks if mark.name.startswith(STEP)]
    spans, all_of_it = timeline.device or _outermost(timeline.ops), (0, 1 << 62)
    if not timeline.device:
        recording.derived.append("Nothing ran on a device: the outermost operators of the host are the ops.")
    must, do = "something runs in a recording", "profile with the activities of the device"
    insist(spans, where, must, "neither kernels, nor operators of the host", do)
    number = chosen_step([mark.name for mark in marks], step, where, recording)
    if number is None:
        recording.derived.append("The profiler marked no steps: all that is recorded is one step.")
        return spans, all_of_it, []
    window = marks[number].start_ns, marks[number + 1].start_ns if number + 1 < len(marks) else 1 << 62
    mine = [span for span in spans if window[0] <= timeline.launch_ns(span) < window[1]]
    insist(mine, where, "something runs in the step", f"nothing in {marks[number].name}", "choose another --step")
    later = [span for span in spans if timeline.launch_ns(span) >= window[1]]
    recording.dropped["what ran in other steps"] += len(spans) - len(mine)
    return mine, window, later


def chosen_step(marks: Sequence[str], step: int | None, where: str, recording: Recording) -> int | None:
    """Return the position of the step that is taken among those that the profiler marked; None if it marked none.

    Parameters
    ----------
    marks
        Their names, in time.
    step
        Number of the step that is asked for; None: the last one that another one follows.
    where, recording
        The trace; takes what is told of the choice.

    Raises
    ------
    ConfigError
        If the step that is asked for was not marked.
    """
    if not marks:
        must, do = "the step that is asked for was marked by the profiler", "leave --step out, or call profiler.step()"
        insist(step is None, where, must, "no ProfilerStep", do)
        return None
    names = [name.removeprefix(STEP) for name in marks]
    number = max(0, len(marks) - 2) if step is None else names.index(str(step)) if str(step) in names else -1
    insist(number >= 0, where, "the step is one that the profiler marked", str(step), f"choose of {', '.join(names)}")
    recording.derived.append(f"The step is {marks[number]} of {counted(len(marks), 'marked step')} (--step).")
    return number


def tell_spans(spans: Sequence[TimelineSpan], recording: Recording) -> None:
    """Say how much ran, and how much of that were copies."""
    copied = [whole(span.args.get("bytes")) for span in spans if span.cat == "gpu_memcpy"]
    copies = f", of which {len(copied):,} copies of {human(sum(copied), 'B')}" if copied else ""
    streams = counted(len({one.at for one in spans}), "stream")
    recording.kept["kernels, copies, fills"] = f"{len(spans):,} on {streams}{copies}"


def _outermost(spans: Iterable[TimelineSpan]) -> list[TimelineSpan]:
    """Spans that no span of the same thread holds."""
    ends, found = defaultdict[tuple[str, str], int](int), list[TimelineSpan]()
    for span in spans:
        if span.start_ns >= ends[span.at]:
            found.append(span)
            ends[span.at] = span.end_ns
    return found


def event_of(span: TimelineSpan) -> Event:
    """Make the op of a span; a kernel of NCCL is a collective of recorded time."""
    named = span.args.get("Collective name") or span.name.removeprefix("ncclDevKernel_").removeprefix("ncclKernel_")
    is_collective = "nccl" in span.name.lower() and collective_kind(named) is not None
    return Event(short(span.name), is_collective=is_collective)


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
    recording.derived.append("An allocation is written by the next op launched, and read by the last before its end.")
    of_stream = defaultdict[int, list[tuple[int, int]]](list)
    for begin in begins:
        of_stream[ops[begin[1]].more.get("stream", 0)].append(begin)
    held = before = max(0, changes[0][3] - changes[0][1])
    live: dict[int, tuple[int, int]] = {}
    for at_ns, change, address, _ in changes:
        held += change
        recording.peak_bytes = max(recording.peak_bytes, held)
        if change > 0 and (following := bisect_left(ends, (at_ns, 0))) < len(ends):
            live[address] = change, ends[following][1]
        elif change < 0:
            size, first = live.pop(address, (-change, -1))
            before += change if first < 0 else 0
            launched = begins if first < 0 else of_stream[ops[first].more.get("stream", 0)]
            last = max(first, launched[max(0, bisect_left(launched, (at_ns, 0)) - 1)][1])
            recording.hold(size, "activation", ops[first] if first >= 0 else None, ops[last])
    for size, first in live.values():
        recording.hold(size, "activation", ops[first], None)
    if before > 0:
        recording.hold(before, "weight", None, None)
        recording.derived.append("What was allocated before the step and stays is one tensor, of kind weight.")


# Kinds for what the profiler calls parameter, optimizer state, input, temporary, activation, gradient, autograd detail,
# and what it does not know.
_CATEGORIES = ("weight", "optimizer_state", "input", "workspace", "activation", "gradient", "activation", "activation")
_CREATE, _CHANGE, _DESTROY = 2, 3, 4
_Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
_Row = tuple[_Whole, Annotated[int, Meta(ge=1, le=_DESTROY)], _Whole, Annotated[int, Meta(ge=0, lt=len(_CATEGORIES))]]


@no_garbage_search()
def read_memory_timeline(source: str | Path) -> Imported:
    """Read a raw memory timeline (``export_memory_timeline`` to ``.raw.json.gz``): what lived when.

    From each instant that allocates to the next is one op: what is freed in between is freed when that ends, so that
    the peak and the step are as recorded.

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
    rows = json_of(path, LONGEST_LINE_BYTES, shape=list[_Row])  # short rows take up to 50 times as much
    must, do = "a raw memory timeline is a list of [time, action, bytes, category]", "export it again"
    is_list = isinstance(rows, list) and any(isinstance(row, tuple) and row[0] >= 0 for row in rows)
    insist(is_list, shown(path), must, "something else", do)
    rows.sort(key=lambda row: row[0])
    times, *columns = (array("q", [row[column] for row in rows]) for column in range(4))
    del rows  # which take several times the file
    instants = sorted({time for time in times if time >= 0})
    recording.kept["changes"] = f"{len(times):,} at {counted(len(instants), 'instant')}"
    recording.step_ns = instants[-1] - instants[0]
    allocates = {time for time, action in zip(times, columns[0], strict=True) if time >= 0 and action != _DESTROY}
    begins = sorted(allocates.union(instants[:1], instants[-1:]))
    for now, then in zip(begins, begins[1:] + begins[-1:], strict=True):
        recording.ops.append(Event("host", more={"duration_ns": then - now, "repeatable": False}))
    live, held, changed = defaultdict[tuple[int, int], list[int]](list), 0, list[int]()
    for time, action, change, category in zip(times, *columns, strict=True):
        size, held, at = abs(change), held + change, bisect_left(begins, time)
        recording.peak_bytes = max(recording.peak_bytes, held)
        if action == _CHANGE and change > 0 and changed:
            live[size, category].append(changed.pop())
        elif action != _DESTROY and change > 0:
            live[size, category].append(at if action == _CREATE else -1)
        elif not live[size, category]:
            recording.dropped["ends of what never began"] += 1
        elif action == _CHANGE:
            changed.append(live[size, category].pop())
        elif at <= max(0, made := live[size, category].pop()):
            recording.dropped["what lived for no time"] += 1
        else:
            first = recording.ops[made] if made >= 0 else None
            recording.hold(size, _CATEGORIES[category], first, recording.ops[at - 1])
    for (size, category), found in live.items():
        for made in found:
            recording.hold(size, _CATEGORIES[category], recording.ops[made] if made >= 0 else None, None)
    del times, columns, instants, allocates, begins, live
    recording.derived.append("The timeline has no ops: from one allocation to the next is one, which the host takes.")
    recording.derived.append("It has no ids: an end is that of the latest of its size and category.")
    return recording.imported(path, "The memory timeline")

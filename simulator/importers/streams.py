"""Replay of a device's recorded streams on the streams of a graph.

A kernel starts once its predecessor on its stream has ended, everything that its stream was told to wait for has ended,
and the host has launched it. In the graph these are the order of a stream, 0-byte tensors from the op that ends to the
op that waits, and a stream for the host. That stream has an op ``host`` for each launch, as long as the host took since
the previous launch, or since the end of what it synchronised with. The latency from a launch to its start is one
number: the median over launches that found their stream idle.

A remaining delay between the time when a kernel could start and the time when it did becomes part of its duration if it
is short and the device was busy until then; an op ``idle`` on its stream if it is long, as the recording does not tell
the reason; otherwise it is dropped. So a replay does not equal the recording by construction: its error tells how well
these rules explain the recording.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from simulator.graph_builder import MOST_STREAMS
from simulator.importers.recordings import Event, Recording, Storage
from simulator.units import counted, human

# Longest time from the end of what a kernel waited for to its start: starts take a few microseconds. A kernel that
# starts so soon after an activity of another stream has ended is taken to have waited for it.
_SHORT_NS = 10_000
_HOST = "the host"  # no device has a stream of this name


@dataclass(slots=True, eq=False)
class Activity:
    """A span of a device's stream.

    Attributes
    ----------
    op
        The op that ran, whole or in part.
    start_ns, end_ns, stream
        Start and end [ns], and stream.
    launched_ns
        End of the host's launch [ns]; None if unknown.
    free_ns
        End of its predecessor on the stream [ns].
    took_ns, idle_ns
        Time for which it occupies the stream, and time for which the stream idles before [ns].
    after
        Activities of other streams that it waited for.
    """

    op: Event
    start_ns: int
    end_ns: int
    stream: str
    launched_ns: int | None = None
    free_ns: int = 0
    took_ns: int = 0
    idle_ns: int = 0
    after: list[Activity] = field(default_factory=list)


Wait = tuple[int, str, str, int]
"""A call that makes a stream wait for another: its time [ns], the waiting stream, the awaited stream (both empty if
unknown), and the time of the call that recorded the awaited event [ns]."""
Sync = tuple[int, int]
"""Start and end of a call by which the host may have waited for the device [ns]."""
Calls = tuple[Sequence[Sync], Sequence[Wait]]
"""Calls by which the host may have waited for the device, and calls that make streams wait for each other."""


def replay(
    step: Recording, ran: Iterable[Activity], ops: Sequence[Event], calls: Calls, then: Activity | None = None
) -> None:
    """Give ops the times and streams of what ran; add ops for the host's work and for idle streams.

    Parameters
    ----------
    step
        Receives the ops, the time of the step, and sentences about them.
    ran
        The activities; at least one.
    ops
        Ops in program order; those of which nothing ran take no time. Other ops that ran are ordered by launch.
    calls
        Other calls of the host.
    then
        The first activity of the next step.
    """
    (syncs, waits), in_time = calls, sorted(ran, key=lambda part: (part.start_ns, part.end_ns))
    first_ns, last_ns = in_time[0].start_ns, max(part.end_ns for part in in_time)
    streams, overlap_ns = _by_stream(in_time, first_ns)
    parts = [part for on_stream in streams.values() for part in on_stream]
    latency_ns = _median_latency_ns(parts, first_ns)
    for part in parts:  # a launch before the step counts as just in time for its start
        part.launched_ns = None if part.launched_ns is None else max(part.launched_ns, first_ns - latency_ns)
    parts.sort(key=lambda part: part.start_ns if part.launched_ns is None else part.launched_ns)
    noted, inferred = _find_waits(streams, waits), _find_idle(parts, waits, latency_ns)
    newest = [on_stream[-1] for on_stream in streams.values()]
    end = Activity(Event("end"), last_ns, last_ns, next(iter(streams)), after=newest)
    if then:
        end.start_ns, ready_ns = max(last_ns, then.start_ns), last_ns
        if then.launched_ns is not None:
            end.launched_ns = min(then.launched_ns, then.start_ns - latency_ns)
            ready_ns = max(last_ns, end.launched_ns + latency_ns)
        end.idle_ns = max(0, end.start_ns - ready_ns)
    step.step_ns, program = end.start_ns - first_ns, _with_launches([*parts, end], syncs, first_ns, latency_ns)
    _write(step, program, ops)
    if len(streams) > 1:
        text = f"Waits between streams: {noted:,} are recorded, {inferred:,} inferred, from ops that had just ended."
        step.derived.append(text)
    if host := [part for part in program if part.stream == _HOST]:
        took, synced = human(sum(part.took_ns for part in host), "ns"), sum(bool(part.after) for part in host)
        text = f"The host works for {took} from launch to launch; it waits for the device {counted(synced, 'time')}."
        step.derived.append(text)
    if overlap_ns:
        step.derived.append(f"{human(overlap_ns, 'ns')} of overlap on one stream were cut: it runs one at a time.")
    if idle_ns := sum(part.idle_ns for part in program):
        step.derived.append(f"Streams idle {human(idle_ns, 'ns')} for no recorded reason: ops 'idle' stand for it.")


def _by_stream(in_time: Iterable[Activity], first_ns: int) -> tuple[dict[str, list[Activity]], int]:
    """Return the activities by stream, the busiest stream first, with consecutive parts of one op merged.

    An activity that starts before its predecessor has ended counts only from that end; also return the sum of such
    overlaps [ns].
    """
    streams, seen, overlap_ns = defaultdict[str, list[Activity]](list), set[Event](), 0
    for part in in_time:
        on_stream = streams[part.stream]
        before = on_stream[-1] if on_stream else None
        part.free_ns = before.end_ns if before else first_ns
        overlap_ns += max(0, min(part.end_ns, part.free_ns) - part.start_ns) if before else 0
        part.took_ns = max(0, part.end_ns - max(part.start_ns, part.free_ns))
        part.end_ns = max(part.end_ns, part.free_ns)
        if before and before.op is part.op:
            before.took_ns += max(0, part.start_ns - part.free_ns) + part.took_ns
            before.end_ns = part.end_ns
            continue
        if before and before.launched_ns is not None and part.launched_ns is not None:
            part.launched_ns = max(part.launched_ns, before.launched_ns)
        if part.op in seen:
            part.op = Event(part.op.name)
        seen.add(part.op)
        on_stream.append(part)
    busiest = sorted(streams, key=lambda name: -sum(part.took_ns for part in streams[name]))
    return {name: streams[name] for name in busiest}, overlap_ns


def _median_latency_ns(parts: Iterable[Activity], first_ns: int) -> int:
    """Return the median latency from launch to start on an idle stream; if no stream was idle, the least one [ns]."""
    launched = [(part, part.start_ns - part.launched_ns) for part in parts if part.launched_ns is not None]
    on_idle = [after_ns for part, after_ns in launched if first_ns < part.free_ns <= part.start_ns - after_ns]
    return median_low(on_idle) if on_idle else max(0, min((after_ns for _, after_ns in launched), default=0))


def _find_waits(streams: Mapping[str, Sequence[Activity]], waits: Iterable[Wait]) -> int:
    """Add the recorded waits between activities; return their number."""
    count, launches = 0, {name: [part.launched_ns or 0 for part in parts] for name, parts in streams.items()}
    for called_ns, stream, source, marked_ns in waits:
        if stream in streams and source in streams and stream != source:
            waiting, awaited = bisect_left(launches[stream], called_ns), bisect_right(launches[source], marked_ns) - 1
            if waiting < len(streams[stream]) and awaited >= 0:
                waiter, ended = streams[stream][waiting], streams[source][awaited]
                if ended.end_ns <= waiter.start_ns:
                    waiter.after.append(ended)
                    count += 1
    return count


def _find_idle(parts: Sequence[Activity], waits: Iterable[Wait], latency_ns: int) -> int:
    """Explain why parts, in order of launch, did not start sooner; return the number of waits inferred from times.

    If the recording does not tell what a part waited for, it is the activity that had just ended on another stream.
    """
    called, ended = sorted(called_ns for called_ns, *_ in waits), sorted(parts, key=lambda part: part.end_ns)
    ends, launched_before, seen = [part.end_ns for part in ended], dict[str, int](), 0
    for part in parts:
        free_ns = max(part.free_ns, *(other.end_ns for other in part.after), 0)
        launched_ns = -1 if part.launched_ns is None else part.launched_ns
        late_ns = part.start_ns - max(free_ns, launched_ns + latency_ns)
        since_ns, launched_before[part.stream] = launched_before.get(part.stream, -1), launched_ns
        if late_ns > _SHORT_NS and bisect_right(called, launched_ns) > bisect_right(called, since_ns):
            just_ended = ended[bisect_left(ends, part.start_ns - _SHORT_NS) : bisect_right(ends, part.start_ns)]
            others = (other for other in reversed(just_ended) if other.stream != part.stream)
            source = next((other for other in others if (other.launched_ns or 0) < launched_ns), None)
            if source is not None:
                part.after.append(source)
                late_ns, free_ns, seen = part.start_ns - source.end_ns, source.end_ns, seen + 1
        if late_ns > (_SHORT_NS if launched_ns >= 0 else 0):
            part.idle_ns = late_ns
        elif free_ns > launched_ns + latency_ns:
            part.took_ns += max(0, late_ns)
    return seen


def _with_launches(parts: Sequence[Activity], syncs: Iterable[Sync], first_ns: int, latency_ns: int) -> list[Activity]:
    """Put the host's work before each launch, after the parts that the host synchronised with."""
    left, since_ns = sorted(syncs, reverse=True), first_ns - latency_ns
    newest, program = dict[str, Activity](), list[Activity]()
    for part in parts:
        if part.launched_ns is not None:
            awaited = list[Activity]()
            while left and left[-1][0] < part.launched_ns:
                begin_ns, end_ns = left.pop()
                awaited += [other for other in newest.values() if begin_ns < other.end_ns <= end_ns]
            since_ns = max(since_ns, *(other.end_ns - latency_ns for other in awaited), 0)
            took_ns, host = max(0, part.launched_ns - since_ns), Event("host", more={"repeatable": False})
            part.after.append(Activity(host, since_ns, part.launched_ns, _HOST, took_ns=took_ns, after=awaited))
            program.append(part.after[-1])
            since_ns = max(since_ns, part.launched_ns)
        program.append(part)
        newest[part.stream] = part
    return program


def _write(recording: Recording, program: Sequence[Activity], ops: Sequence[Event]) -> None:
    """Write the ops of a program; its last one joins all streams. `ops` keep their own order."""
    busy_ns = Counter[str]()
    for part in program:
        busy_ns[part.stream] += part.took_ns + part.idle_ns
    streams = {name: min(rank, MOST_STREAMS - 1) for rank, (name, _) in enumerate(busy_ns.most_common())}
    program[-1].stream = next(iter(streams))
    before, loose, waits = {op: list[Event]() for op in ops}, list[Event](), list[tuple[Event, Event]]()
    for part in program:
        begins, stream = part.op, streams[part.stream]
        part.op.more |= {"duration_ns": part.took_ns, "stream": stream}
        if part.idle_ns:
            begins = Event("idle", more={"duration_ns": part.idle_ns, "stream": stream, "repeatable": False})
            loose.append(begins)
        waits += [(source.op, begins) for source in part.after if streams[source.stream] != stream]
        if part.op in before:
            before[part.op], loose = loose, []
        else:
            loose.append(part.op)
    recording.ops = [event for op in ops for event in (*before[op], op)] + loose
    made, device = dict[Storage, int](), next(stream for name, stream in streams.items() if name != _HOST)
    for op in recording.ops:  # ops that launched nothing take no time, on the stream that made what they read
        if "stream" not in op.more:
            op.more |= {"duration_ns": 0, "stream": next((made[read] for read in op.reads if read in made), device)}
        made |= dict.fromkeys(op.writes, op.more["stream"])
    if len(streams) == 1:
        recording.ops.pop()
    else:  # a step begins on all streams once the previous one has ended
        began = recording.storage(0, persistent=True)
        recording.ops[-1].writes[began] = None
        for event in {event.more["stream"]: event for event in recording.ops[::-1]}.values():
            event.reads[began] = None
    position, signals = {event: index for index, event in enumerate(recording.ops)}, dict[Event, Storage]()
    for source, waiter in waits:  # a wait between streams becomes a tensor of 0 bytes
        if position[source] < position.get(waiter, -1):
            if source not in signals:
                signals[source] = recording.storage(0)
                source.writes[signals[source]] = None
            waiter.reads[signals[source]] = None

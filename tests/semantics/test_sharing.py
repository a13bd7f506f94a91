"""Fair sharing by virtual finish times equals an oracle that keeps the remaining work of every flow."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cost.service import FULL_RATE
from simulator.engine.reference.clock import Clock
from simulator.engine.reference.network import Network, Path, Pipe, SharedResource, max_min_rates


class Flow:
    """One flow of a test: what it needs, where it goes, and when it ended."""

    def __init__(self, clock, path, cap, work, arrival):
        self.clock, self.path, self.cap, self.work, self.arrival = clock, path, cap, work, arrival
        self.ended_ns = None

    def end(self):
        self.ended_ns = self.clock.now


def run_engine(flows, clock):
    network = Network(clock)
    for key, flow in enumerate(flows):

        def join(event, flow=flow, key=key):
            end = network.flow(flow.path, flow.cap, flow.work, key)
            end.callbacks.append(lambda _: flow.end())

        clock.timeout(flow.arrival).callbacks.append(join)
    clock.run()


def oracle_rates(flows):
    """Max-min over flows, one flow at a time: who is held back most is settled first."""
    per_path = {id(f.path): sum(g.path is f.path for g in flows) for f in flows}
    caps = [Fraction(min(f.cap, FULL_RATE // per_path[id(f.path)]) if f.path.even else f.cap, FULL_RATE) * f.path.unit
            for f in flows]  # fmt: skip
    rates = {}
    while len(rates) < len(flows):
        offers = {}
        for i, f in enumerate(flows):
            if i in rates:
                continue
            shares = [caps[i]]
            for r in f.path.shared:
                on = [j for j, g in enumerate(flows) if r in g.path.shared]
                used = sum(rates[j] for j in on if j in rates)
                shares.append((r.bandwidth - used) / Fraction(sum(j not in rates for j in on)))
            offers[i] = min(shares)
        least = min(offers.values())
        rates[next(i for i, offer in offers.items() if offer == least)] = least
    return [max(1, math.floor(rates[i] * FULL_RATE / f.path.unit)) for i, f in enumerate(flows)]


def run_oracle(flows):
    ends, left, now = [None] * len(flows), [f.work for f in flows], 0
    while None in ends:
        active = [i for i, f in enumerate(flows) if ends[i] is None and f.arrival <= now]
        rates = oracle_rates([flows[i] for i in active]) if active else []
        changes = [f.arrival for f in flows if f.arrival > now]
        changes += [now + -(-left[i] // r) for i, r in zip(active, rates, strict=True)]
        then = min(changes)
        for i, r in zip(active, rates, strict=True):
            left[i] = max(0, left[i] - r * (then - now))
            if left[i] == 0:
                ends[i] = then
        now = then
    return ends


@st.composite
def flows_on_links(draw):
    clock = Clock()
    buses = [SharedResource(draw(st.integers(1, 40))) for _ in range(draw(st.integers(0, 2)))]
    paths = []
    for _ in range(draw(st.integers(1, 3))):
        unit, sharing = draw(st.integers(1, 20)), draw(st.sampled_from(["fifo", "fair"]))
        on = tuple(b for b in buses if draw(st.booleans()))
        own = (SharedResource(unit),) if sharing == "fair" else ()
        paths.append(Path(unit, tuple((resource, 1) for resource in own + on), even=sharing == "fifo"))
    caps = st.sampled_from([FULL_RATE, FULL_RATE // 2, FULL_RATE // 3, FULL_RATE // 7])
    flow = st.builds(
        lambda p, c, w, a: Flow(clock, p, c, w * FULL_RATE // 3, a),
        st.sampled_from(paths), caps, st.integers(0, 300), st.integers(0, 60),
    )  # fmt: skip
    return draw(st.lists(flow, min_size=1, max_size=8)), clock


@settings(max_examples=300, deadline=None)
@given(flows_on_links())
def test_ends_equal_the_oracles_to_the_nanosecond(case):
    flows, clock = case
    run_engine(flows, clock)
    assert [f.ended_ns for f in flows] == run_oracle(flows)


@settings(max_examples=200, deadline=None)
@given(flows_on_links())
def test_every_flow_has_a_saturated_resource_or_its_own_cap(case):
    flows, _ = case
    pipes = {}
    for key, f in enumerate(flows):
        pipes.setdefault((id(f.path), f.cap), Pipe(f.path, f.cap)).tags.append((0, key, f.end))
    pipes = list(pipes.values())
    rates = max_min_rates(pipes)
    counts = {id(p.path): sum(len(q.tags) for q in pipes if q.path is p.path) for p in pipes}
    slack = Fraction(len(flows), FULL_RATE) * 40
    for pipe, rate in zip(pipes, rates, strict=True):
        cap = min(pipe.cap, FULL_RATE // counts[id(pipe.path)]) if pipe.path.even else pipe.cap
        used = {
            r: sum(Fraction(q_rate, FULL_RATE) * q.path.unit * len(q.tags)
                   for q, q_rate in zip(pipes, rates, strict=True) if r in q.path.shared)
            for r in pipe.path.shared
        }  # fmt: skip
        assert all(u <= r.bandwidth for r, u in used.items()) or rate == 1
        saturated = any(r.bandwidth - u <= slack for r, u in used.items())
        assert saturated or rate >= cap - 1


def test_a_lone_flow_runs_at_the_full_rate():
    clock = Clock()
    flow = Flow(clock, Path(10, ((SharedResource(10), 1),), even=False), FULL_RATE, 7 * FULL_RATE + 1, 3)
    run_engine([flow], clock)
    assert flow.ended_ns == 11, "an end is the first whole nanosecond at which the work is done"

"""Collectives against their closed forms, and the closed forms against the algorithms played step by step."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost import durations_ns
from simulator.cost.collectives import algorithms, collective_ns, group_ns, phases
from simulator.cost.service import Phase, fabric_rate_cap, phase_work, stages
from simulator.errors import ConfigError
from simulator.graph import Collective, CollectiveKind, Graph, Group, Op, OpKind
from simulator.hardware import Hardware

KINDS = tuple(CollectiveKind)
POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
TOGETHER = tuple(kind for kind in KINDS if kind not in POINT_TO_POINT)

NODE = {"scope": "node", "bandwidth": "100 GB/s", "latency": "1 us"}
SUPERNODE = {"scope": "supernode", "bandwidth": "10 GB/s", "latency": "5 us"}


def machine(per_node=8, nodes=1, **fabrics):
    return Hardware.model_validate(
        {
            "name": "toy",
            "compute_tier": "hbm",
            "compute": {"peak": {"bf16": "100 TFLOP/s"}},
            "tiers": {"hbm": {"capacity": "64 GB", "bandwidth": "1.6 TB/s"}},
            "topology": {"devices_per_node": per_node, "nodes": nodes},
            "fabrics": fabrics,
        }
    )


def asked(kind, size=1_000_000, algorithm="auto"):
    return Collective(CollectiveKind(kind), "g", size, algorithm)


def fabric_of(members, hardware):
    return phases(asked("all_gather", algorithm="direct"), members, hardware)[0].fabric


def refusal(call, *args):
    with pytest.raises(ConfigError) as caught:
        call(*args)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "algorithm", "hops", "sent"),
    [
        ("all_reduce", "ring", 14, 1_750_000),
        ("all_reduce", "tree", 6, 2_000_000),
        ("all_reduce", "direct", 2, 1_750_000),
        ("all_gather", "ring", 7, 875_000),
        ("all_gather", "direct", 1, 875_000),
        ("reduce_scatter", "ring", 7, 875_000),
        ("reduce_scatter", "direct", 1, 875_000),
        ("all_to_all", "ring", 7, 875_000),
        ("all_to_all", "direct", 1, 875_000),
        ("broadcast", "ring", 7, 1_000_000),
        ("broadcast", "tree", 3, 1_000_000),
    ],
)
def test_a_collective_of_eight_is_its_closed_form(kind, algorithm, hops, sent):
    hw, what = machine(wire=NODE), asked(kind, algorithm=algorithm)
    assert phases(what, range(8), hw) == (Phase("wire", hops, sent),)
    assert collective_ns(what, range(8), hw) == hops * 1_000 + sent // 100


@pytest.mark.parametrize("kind", POINT_TO_POINT)
def test_a_message_takes_one_hop_and_its_bytes(kind):
    hw = machine(wire=NODE)
    assert phases(asked(kind), (3, 1), hw) == (Phase("wire", 1, 1_000_000),)
    assert collective_ns(asked(kind, algorithm="direct"), (3, 1), hw) == 1_000 + 10_000


@pytest.mark.parametrize(("members", "deep"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_a_tree_is_as_deep_as_its_members_need(members, deep):
    hw = machine(per_node=16, wire=NODE)
    assert phases(asked("broadcast", algorithm="tree"), range(members), hw)[0].hops == deep


def test_bytes_are_whole_and_rounded_up():
    assert phases(asked("all_gather", 10, "ring"), range(3), machine(wire=NODE)) == (Phase("wire", 2, 7),)


def test_planes_add_bandwidth_and_the_achieved_share_takes_some_away():
    wire = NODE | {"planes": 4, "achieved_bandwidth": 0.5}
    hw = machine(wire=wire)
    fabric, phase = hw.fabrics["wire"], Phase("wire", 3, 1_000_000)
    assert collective_ns(asked("send"), (0, 1), hw) == 1_000 + 5_000
    assert phase_work(phase, fabric) == 2_500 << 32
    assert fabric_rate_cap(fabric) == 1 << 31


def test_members_of_one_take_no_time_and_need_no_fabric():
    for kind in TOGETHER:
        assert phases(asked(kind), (0,), machine(per_node=1)) == ()
        assert collective_ns(asked(kind), (0,), machine(per_node=1)) == 0


def test_a_fabric_without_limits_leaves_the_hops():
    hw = machine(wire=NODE | {"bandwidth": "inf"})
    assert collective_ns(asked("all_reduce", algorithm="ring"), range(8), hw) == 14_000


# Which fabric, which algorithm


def test_the_narrowest_fabric_that_joins_all_is_taken():
    both = machine(4, 2, wide=SUPERNODE, near=NODE, near2=NODE)
    assert fabric_of((0, 3), both) == "near"
    assert fabric_of((4, 5, 7), both) == "near"
    assert fabric_of((3, 4), both) == "wide"
    assert fabric_of((0, 3), machine(4, 2, wide=SUPERNODE)) == "wide"


def test_auto_is_the_fastest_and_of_equals_the_first():
    hw = machine(wire=NODE)
    assert phases(asked("all_reduce"), range(8), hw) == phases(asked("all_reduce", algorithm="direct"), range(8), hw)
    small = machine(wire=NODE | {"latency": "0 ns"})
    assert phases(asked("all_reduce"), range(8), small)[0].hops == 14
    assert phases(asked("broadcast"), range(8), small)[0].hops == 7
    assert phases(asked("broadcast"), range(8), hw)[0].hops == 3


def test_auto_keeps_to_what_the_library_has_a_name_does_not():
    library = {"all_reduce": ["tree", "ring"], "all_gather": ["ring"]}
    hw = machine(4, 2, near=NODE | {"algorithms": library}, wide=SUPERNODE | {"algorithms": library})
    assert phases(asked("all_reduce"), range(4), hw) == (Phase("near", 6, 1_500_000),)
    assert phases(asked("all_reduce", 100), range(4), hw) == (Phase("near", 4, 200),)
    assert phases(asked("all_reduce", algorithm="direct"), range(4), hw) == (Phase("near", 2, 1_500_000),)
    assert phases(asked("all_to_all"), range(4), hw) == (Phase("near", 1, 750_000),)
    assert phases(asked("all_gather"), range(8), hw) == (Phase("wide", 1, 125_000), Phase("near", 3, 750_000))


def test_an_all_reduce_of_two_levels_is_three_collectives():
    hw = machine(4, 2, near=NODE, wide=SUPERNODE)
    assert phases(asked("all_reduce", algorithm="hierarchical"), range(8), hw) == (
        Phase("near", 1, 750_000),
        Phase("wide", 2, 250_000),
        Phase("near", 1, 750_000),
    )
    assert collective_ns(asked("all_reduce"), range(8), hw) == 1_000 + 7_500 + 10_000 + 25_000 + 1_000 + 7_500


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("all_gather", (Phase("wide", 1, 125_000), Phase("near", 1, 750_000))),
        ("reduce_scatter", (Phase("near", 1, 750_000), Phase("wide", 1, 125_000))),
        ("all_to_all", (Phase("near", 1, 750_000), Phase("wide", 1, 500_000))),
        ("broadcast", (Phase("wide", 1, 1_000_000), Phase("near", 2, 1_000_000))),
    ],
)
def test_other_kinds_have_two_levels_as_well(kind, parts):
    hw = machine(4, 2, near=NODE, wide=SUPERNODE)
    assert phases(asked(kind, algorithm="hierarchical"), range(8), hw) == parts


def test_levels_pass_chunks_on_in_a_pipeline():
    """The first 0.2 MB go level after level; of the other 0.8 MB, 1.2 MB are near and 0.2 MB wide, side by side."""
    hw = machine(4, 2, near=NODE, wide=SUPERNODE | {"chunk": "200 kB"})
    found = phases(asked("all_reduce", algorithm="hierarchical"), range(8), hw)
    assert found == (
        Phase("near", 1, 150_000),
        Phase("wide", 2, 50_000),
        Phase("near", 1, 150_000),
        Phase("near", 0, 1_200_000),
        Phase("wide", 0, 200_000, beside=True),
    )
    assert stages(found) == (*((phase,) for phase in found[:3]), found[3:])
    fill = 1_000 + 1_500 + 10_000 + 5_000 + 1_000 + 1_500
    assert collective_ns(asked("all_reduce"), range(8), hw) == fill + max(12_000, 20_000)
    whole = machine(4, 2, near=NODE, wide=SUPERNODE | {"chunk": "1 MB"})
    assert len(phases(asked("all_reduce"), range(8), whole)) == 3, "one chunk is all: nothing to overlap"


def test_two_levels_need_even_nodes_of_several_and_both_fabrics():
    hw = machine(4, 3, near=NODE, wide=SUPERNODE)
    assert algorithms(CollectiveKind.ALL_REDUCE, range(12), hw)[-1] == "hierarchical"
    for members in (range(4), range(6), (0, 4, 8)):
        assert algorithms(CollectiveKind.ALL_REDUCE, members, hw) == ("ring", "tree", "direct")
    assert "hierarchical" not in algorithms(CollectiveKind.ALL_REDUCE, range(12), machine(4, 3, wide=SUPERNODE))


# What a graph's collectives take


def test_a_collective_op_takes_its_time_alone_where_it_takes_longest():
    hw = machine(4, 2, near=NODE, wide=SUPERNODE)
    inside, uneven = Group("inside", ((0, 1), (4, 5))), Group("uneven", ((0, 1), (3, 4)))
    ops = (
        Op("a", kind=OpKind.COLLECTIVE, collective=Collective(CollectiveKind.BROADCAST, "inside", 1_000)),
        Op("b", kind=OpKind.COLLECTIVE, collective=Collective(CollectiveKind.BROADCAST, "uneven", 1_000)),
        Op("c", kind=OpKind.COLLECTIVE, collective=asked("broadcast"), duration_ns=7),
        Op("d", flops=100_000_000),
    )
    graph = Graph("toy", (), ops, groups=(inside, uneven))
    assert durations_ns(graph, hw) == [1_010, 5_100, 7, 1_000]
    assert group_ns(ops[1].collective, uneven, hw) == collective_ns(ops[1].collective, (3, 4), hw)


# Refusals


def test_a_collective_of_an_unknown_group_is_refused():
    op = Op("sum", kind=OpKind.COLLECTIVE, collective=Collective(CollectiveKind.ALL_REDUCE, "tensr", 1))
    said = refusal(durations_ns, Graph("toy", (), (op,), groups=(Group("tensor", ((0, 1),)),)), machine(wire=NODE))
    assert said == (
        "op 'sum': a collective names a group of its graph, found 'tensr'; use one of tensor (did you mean 'tensor'?)"
    )


def test_more_ranks_than_devices_are_refused():
    said = refusal(phases, asked("all_reduce"), range(9), machine(wire=NODE))
    assert said == (
        "hardware 'toy', topology: each rank has a device of its own, found rank 8 and 8 devices; "
        "raise topology.nodes or topology.devices_per_node, or run fewer ranks"
    )


def test_members_that_no_fabric_joins_are_refused():
    said = refusal(phases, asked("all_reduce"), (0, 4), machine(4, 2, near=NODE))
    assert said == (
        "hardware 'toy', fabrics: a fabric joins ranks that meet (here 2 ranks on 2 nodes), found near (scope node); "
        "add a fabric of scope supernode"
    )
    assert "found none; add a fabric of scope node or supernode" in refusal(fabric_of, (0, 1), machine())


@pytest.mark.parametrize(
    ("kind", "algorithm", "choice"),
    [
        ("all_gather", "tree", "ring, direct or auto"),
        ("broadcast", "direct", "ring, tree or auto"),
        ("all_reduce", "hierarchical", "ring, tree, direct or auto"),
        ("all_reduce", "rings", "ring, tree, direct or auto"),
        ("send", "ring", "direct or auto"),
    ],
)
def test_an_algorithm_that_does_not_apply_is_refused_with_those_that_do(kind, algorithm, choice):
    said = refusal(phases, asked(kind, algorithm=algorithm), (0, 1), machine(wire=NODE))
    assert said == (
        f"group 'g': the algorithm of a collective applies to its kind and members ({kind} of 2 ranks on 1 node), "
        f"found {algorithm!r}; choose one of {choice}"
    )


# Closed forms against the algorithms themselves: every member starts with n numbered parts; what each sends is counted.


class Players:
    """Ranks that exchange parts in rounds; a part is a set of the ranks whose share it holds."""

    def __init__(self, parts):
        self.parts, self.sent, self.rounds = parts, [0] * len(parts), 0

    def round(self, messages, reduce):
        """Deliver (from, to, part) at once; each costs its sender one part."""
        arriving = [(to, part, self.parts[source][part]) for source, to, part in messages]
        for source, _, _ in messages:
            self.sent[source] += 1
        for to, part, value in arriving:
            self.parts[to][part] = self.parts[to][part] | value if reduce else value
        self.rounds += 1


def reduced(n):
    """Each rank holds its own share of each of n parts."""
    return Players([[frozenset({rank}) for _ in range(n)] for rank in range(n)])


def ring_reduce_scatter(players, n):
    for k in range(n - 1):
        players.round([(r, (r + 1) % n, (r - k) % n) for r in range(n)], reduce=True)
    return [(r + 1) % n for r in range(n)]


def ring_all_gather(players, n, owned):
    for k in range(n - 1):
        players.round([(r, (r + 1) % n, (owned[r] - k) % n) for r in range(n)], reduce=False)


def direct_reduce_scatter(players, n):
    players.round([(r, to, to) for r in range(n) for to in range(n) if to != r], reduce=True)
    return list(range(n))


def direct_all_gather(players, n, owned):
    players.round([(r, to, owned[r]) for r in range(n) for to in range(n) if to != r], reduce=False)


MEMBERS = st.integers(2, 12)
PLAYED = {"ring": (ring_reduce_scatter, ring_all_gather), "direct": (direct_reduce_scatter, direct_all_gather)}


@given(MEMBERS, st.sampled_from(sorted(PLAYED)))
def test_played_all_reduce_sends_what_the_closed_form_says(n, algorithm):
    scatter, gather = PLAYED[algorithm]
    players, everyone = reduced(n), frozenset(range(n))
    owned = scatter(players, n)
    assert all(players.parts[r][owned[r]] == everyone for r in range(n))
    (half,) = phases(asked("reduce_scatter", n, algorithm), range(n), machine(16, wire=NODE))
    assert (players.rounds, set(players.sent)) == (half.hops, {half.port_bytes})
    gather(players, n, owned)
    assert players.parts == [[everyone] * n] * n
    (whole,) = phases(asked("all_reduce", n, algorithm), range(n), machine(16, wire=NODE))
    assert (players.rounds, set(players.sent)) == (whole.hops, {whole.port_bytes})


@given(MEMBERS)
def test_played_pairwise_exchange_sends_what_the_closed_form_says(n):
    inbox, sent = [{rank: rank} for rank in range(n)], [0] * n
    for k in range(1, n):
        for rank in range(n):
            inbox[(rank + k) % n][rank] = rank
            sent[rank] += 1
    assert all(set(box) == set(range(n)) for box in inbox)
    (phase,) = phases(asked("all_to_all", n, "ring"), range(n), machine(16, wire=NODE))
    assert (n - 1, set(sent)) == (phase.hops, {phase.port_bytes})


# Laws

SIZES = st.integers(0, 10**12)


@st.composite
def settings(draw):
    """A machine with one or two fabrics, and members on it."""
    per_node, nodes = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    rates = st.integers(10**6, 10**12)
    wide = {"scope": "supernode", "bandwidth": f"{draw(rates)} B/s", "latency": f"{draw(st.integers(0, 9_999))} ns"}
    wide |= {"planes": draw(st.integers(1, 8)), "achieved_bandwidth": draw(st.floats(0.01, 1))}
    wide |= draw(st.sampled_from([{}, {"chunk": f"{draw(st.integers(1, 10**12))} B"}]))
    near = {"scope": "node", "bandwidth": f"{draw(rates)} B/s", "latency": f"{draw(st.integers(0, 9_999))} ns"}
    hw = machine(per_node, nodes, wide=wide, **({"near": near} if draw(st.booleans()) else {}))
    ranks = st.integers(0, per_node * nodes - 1)
    members = draw(st.lists(ranks, min_size=2, max_size=per_node * nodes, unique=True).map(sorted))
    return hw, tuple(draw(st.sampled_from([members, list(range(per_node * nodes))])))


LEAST = {
    CollectiveKind.ALL_REDUCE: lambda n: Fraction(2 * (n - 1), n),
    CollectiveKind.ALL_GATHER: lambda n: Fraction(n - 1, n),
    CollectiveKind.REDUCE_SCATTER: lambda n: Fraction(n - 1, n),
    CollectiveKind.ALL_TO_ALL: lambda n: Fraction(n - 1, n),
    CollectiveKind.BROADCAST: lambda n: Fraction(1),
}


@given(settings(), SIZES, st.sampled_from(TOGETHER))
def test_no_algorithm_sends_less_than_any_must(setting, size, kind):
    hw, members = setting
    for algorithm in algorithms(kind, members, hw):
        sent = sum(phase.port_bytes for phase in phases(asked(kind, size, algorithm), members, hw))
        assert sent >= LEAST[kind](len(members)) * size


@given(settings(), SIZES, st.sampled_from(TOGETHER))
def test_auto_is_never_slower_than_a_named_algorithm(setting, size, kind):
    hw, members = setting
    times = [collective_ns(asked(kind, size, name), members, hw) for name in algorithms(kind, members, hw)]
    assert collective_ns(asked(kind, size), members, hw) == min(times)


@given(MEMBERS, SIZES, st.sampled_from(TOGETHER), st.sampled_from(["ring", "tree", "direct", "auto"]))
def test_more_members_are_never_cheaper_on_one_fabric(n, size, kind, algorithm):
    hw = machine(16, wire=NODE)
    if algorithm != "auto" and algorithm not in algorithms(kind, range(n), hw):
        return
    what = asked(kind, size, algorithm)
    assert collective_ns(what, range(n + 1), hw) >= collective_ns(what, range(n), hw)


@given(settings(), SIZES, SIZES, st.sampled_from(KINDS))
def test_more_bytes_are_never_cheaper(setting, size, more, kind):
    hw, members = setting
    members = members[:2] if kind in POINT_TO_POINT else members
    assert collective_ns(asked(kind, size + more), members, hw) >= collective_ns(asked(kind, size), members, hw)


@given(settings(), SIZES, st.sampled_from(KINDS))
def test_a_phase_alone_is_its_formula_rounded_up(setting, size, kind):
    hw, members = setting
    members = members[:2] if kind in POINT_TO_POINT else members
    what, times = asked(kind, size), []
    parts = phases(what, members, hw)
    for part in parts:
        fabric = hw.fabrics[part.fabric]
        rate = fabric.bandwidth_bytes_per_s * fabric.planes * Fraction(fabric_rate_cap(fabric), 1 << 32)
        times.append(part.hops * fabric.latency_ns + Fraction(part.port_bytes * 10**9) / rate)
        if part.beside:
            times[-2:] = [max(times[-2:])]
    exact = sum(times)
    assert exact <= collective_ns(what, members, hw) < exact + len(parts) * (1 + Fraction(1, 2**24))


@given(settings(), st.integers(1, 10**12), st.integers(2, 9), st.sampled_from(TOGETHER))
def test_smaller_chunks_overlap_more_and_never_less_than_the_fullest_fabric_takes(setting, size, times, kind):
    hw, members = setting
    if "hierarchical" not in algorithms(kind, members, hw):
        return
    wide = hw.fabrics["wide"]

    def took(chunk):
        fabrics = {**hw.fabrics, "wide": wide.model_copy(update={"chunk_bytes": chunk})}
        here = hw.model_copy(update={"fabrics": fabrics})
        return phases(what, members, here), collective_ns(what, members, here)

    what, chunk = asked(kind, size, "hierarchical"), wide.chunk_bytes or size
    sequential, small = took(None)[1], took(max(1, chunk // times))
    assert small[1] <= took(chunk)[1] + 4 <= sequential + 8, "each phase rounds up"
    sent = Counter()
    for part in small[0]:
        sent[part.fabric] += part.port_bytes
    rounded = sum(part.port_bytes > 0 for part in small[0])
    for name, bytes_ in sent.items():
        alone = phase_work(Phase(name, 0, bytes_), hw.fabrics[name]) // fabric_rate_cap(hw.fabrics[name])
        assert small[1] >= alone - rounded


@given(settings(), st.sampled_from(TOGETHER))
def test_a_group_takes_as_long_as_its_slowest_members(setting, kind):
    hw, members = setting
    half = max(1, len(members) // 2)
    group = Group("g", (members[:half], members[half:]))
    what = asked(kind)
    assert group_ns(what, group, hw) == max(collective_ns(what, some, hw) for some in group.members)


def test_depth_is_exact_where_floating_point_is_not():
    hw = machine(1 << 10, 1 << 6, wide=SUPERNODE)
    deep = phases(asked("broadcast", algorithm="tree"), range(2**15 + 1), hw)[0].hops
    assert deep == 16 == math.ceil(math.log2(2**15 + 1))

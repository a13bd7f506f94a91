"""Laws of classes of iterations: what stands for others is near them, and exact where nothing waits."""

from __future__ import annotations

from dataclasses import fields
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving_cases import BOX, DRAWN, EXPERTS, MODELS, toy, write

import simulator as hosim
from simulator import catalog
from simulator.builders import Iteration, Iterations, cached_layers, iteration, limited_reaches
from simulator.cost import durations_ns
from simulator.errors import ConfigError
from simulator.graph import LARGEST, GraphColumns
from simulator.lifetime import Lifetimes
from simulator.serving.replays import PARTS, Replays

BLOCK, TOKEN_BYTES, OPS = 8, 2 * 2 * 2 * 16 * 2, 40
FIGURES = [f"{name}_p{percent}_ns" for name, percent in product(("ttft", "tpot", "e2e"), (50, 90, 99))]


@st.composite
def works(draw, most=400):
    """Iterations that may occur, whose numbers belong together."""
    decoding = draw(st.integers(0, 4))
    reading = draw(st.integers(0 if decoding else 1, 64 - decoding))
    cached = draw(st.integers(0, most)) if reading else 0
    ends = draw(st.integers(0, min(reading, 3)))
    loads, stores = (draw(st.integers(0, 20)) * BLOCK for _ in range(2))
    return Iteration(
        decoding=decoding,
        context=decoding * draw(st.integers(1, most)),
        reading=reading,
        cached=cached,
        pairs=reading * cached + reading * (reading + 1) // 2,
        answers=decoding + ends,
        loads=(("ddr", (loads,)),) if loads and reading else (),
        stores=((("hbm", "ddr"), (stores,)),) if stores else (),
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Replays by classes, and exact ones, of a row and over links of a rate."""
    made = {}
    for row, rate in product(("static", "on demand"), ("1 GB/s", "inf")):
        box = BOX.replace("bandwidth: 1 GB/s", f"bandwidth: {rate}")
        loaded = catalog.resolve(write(tmp_path_factory.mktemp("box"), box=box))
        made[row, rate] = [Replays(loaded, row, 256_000, exact=exact) for exact in (False, True)]
    return made


SERVED = list(product(MODELS, (None, EXPERTS)))
"""Each model that is served, with dense layers and with experts."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Each of them with five layers, and the graphs of its iterations, which are kept from case to case."""
    made = {}
    for name, part in SERVED:
        text = toy(MODELS[name], *([part] if part else [])).replace("layers: 2", "layers: 5")
        workload = catalog.resolve(write(tmp_path_factory.mktemp("kept"), workload=text)).workload
        made[name, part] = workload, Iterations(workload)
    return made


@given(works(), st.sampled_from(SERVED), st.integers(0, 1 << 20), st.integers(1, 9), st.data())
def test_a_kept_graph_with_other_numbers_is_the_graph_that_is_built_anew(kept, work, case, room_bytes, times, data):
    """The graph of an iteration a few times as large is kept before."""
    workload, graphs = kept[case]
    model = workload.model.decoder
    triples = st.tuples(*(st.integers(0, 300),) * 3)
    tokens = st.tuples(*(st.sampled_from((0, BLOCK, 5 * BLOCK)),) * len(cached_layers(model, workload.dtypes)))
    near = data.draw(st.tuples(*(triples for _ in limited_reaches(model))))
    loads, stores = (tuple((way, data.draw(tokens)) for way, _ in ways) for ways in (work.loads, work.stores))
    work = work._replace(near=near, loads=loads, stores=stores)
    numbers = [*(times * n for n in work[:6]), tuple(tuple(times * n for n in triple) for triple in near)]
    copied = [tuple((way, tuple(times * n for n in each)) for way, each in ways) for ways in (loads, stores)]
    graphs.graph(Iteration(*numbers, *copied), times * room_bytes)
    shapes = len(graphs)
    graph, anew = graphs.graph(work, room_bytes), iteration(workload, work, room_bytes)
    assert len(graphs) == shapes
    assert graph == anew
    assert graph.inputs == anew.inputs
    assert vars(Lifetimes.of(graph)) == vars(Lifetimes.of(anew))
    for column in fields(GraphColumns):
        assert getattr(graph.columns, column.name).tolist() == getattr(anew.columns, column.name).tolist()


def test_sizes_that_add_up_to_too_much_are_refused_of_a_kept_graph_as_well(kept):
    _, graphs = kept["all tokens", None]
    work = Iteration(decoding=1, context=40, answers=1)
    graphs.graph(work, 256_000)
    with pytest.raises(ConfigError, match=r"workload toy: the sizes add up to at most 2\*\*62"):
        graphs.graph(work, LARGEST)


@given(works())
def test_what_ops_take_is_known_from_the_numbers(both, work):
    replays, _ = both["static", "inf"]
    loaded = replays._loaded
    taken = sum(durations_ns(iteration(loaded.workload, work, 256_000), loaded.hardware))
    assert replays.shape(work).ops_ns(work) == pytest.approx(taken, abs=OPS)


@given(works())
def test_where_nothing_waits_all_of_a_class_are_exact(both, work):
    by_class, exact = (one.of(work) for one in both["static", "inf"])
    assert by_class["took_ns"] == pytest.approx(exact["took_ns"], abs=2 * OPS)
    assert by_class["flops"] == exact["flops"]


@pytest.mark.parametrize("row", ["static", "on demand"])
@given(work=works())
def test_what_waits_makes_of_an_error_is_bounded(both, row, work):
    """Half a step of each number and of each way, as a share of what the ops take; bytes are exact."""
    by_class, exact = (one.of(work) for one in both[row, "1 GB/s"])
    taken = exact["took_ns"] - exact["stall_ns"] - exact["drain_ns"]
    assert abs(by_class["took_ns"] - exact["took_ns"]) <= 8 * taken / min(PARTS) / 2 + 2 * OPS
    moved = [column for column in exact if column.startswith("moved_")]
    assert [by_class[column] for column in moved] == [exact[column] for column in moved]


CROWD = DRAWN.replace("count: 12", "count: NUMBER")
CASES = [
    pytest.param(90, "static", "local and global", None, marks=pytest.mark.slow),
    pytest.param(30, "on demand", "latent", EXPERTS, marks=pytest.mark.slow),
]
CASES += [
    pytest.param(300, row, name, part, marks=pytest.mark.slow)
    for i, name in enumerate(MODELS)
    for row, part in zip(("static", "on demand"), (None, EXPERTS) if i % 2 else (EXPERTS, None), strict=True)
]
"""Each model under each row, every other one with experts; under a row, half of the models have them."""


@pytest.mark.parametrize(("number", "row", "name", "part"), CASES)
def test_a_trace_is_within_1_percent_of_replaying_every_iteration(number, row, name, part, tmp_path):
    """Requests in a queue, whose shared prefixes come and go from tier to tier."""
    box, crowd = BOX.replace("capacity: 4 MB", "capacity: 64 MB"), CROWD.replace("NUMBER", str(number))
    crowd = crowd.replace("40 us", "600 us" if part else "60 us")  # as fast as they are served, or almost
    workload = toy(MODELS[name], *([part] if part else []))
    path = write(tmp_path, requests=crowd, kv_tiers="hbm: 64 KiB, ddr: 256 KiB", box=box, workload=workload)
    (by_class,), (exact,) = (hosim.serve(path, policies=[row], exact=exact).rows for exact in (False, True))
    assert exact["finished"] == number
    assert by_class["replayed"] < 0.7 * exact["replayed"]
    for column in ("end_ns", "busy_ns", "tflops", *FIGURES):
        assert by_class[column] == pytest.approx(exact[column], rel=0.01)

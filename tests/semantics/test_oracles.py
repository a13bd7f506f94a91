"""Results that others worked out by hand or in closed form, for one device."""

from __future__ import annotations

import pytest
from stories import graph, machine, play, timeline, waits
from synthetic import chain

from simulator.plan import Actions

OFFLOADED = (2, 3, 6, 7)


def _layers():
    """Eight layers of 10 ns in groups of four, the last two of each group offloaded; a copy takes 15 ns."""
    tensors = ", ".join(f"w{i} 15 persistent" for i in range(8))
    return graph(tensors, *(f"L{i}: w{i} ->, 10 ns" for i in range(8)))


def _prefetch(depth):
    """As each offloaded layer starts, prefetch the one `depth` places behind it; the first ones at the start."""
    steps = [f"copy w{i} ddr hbm" for i in OFFLOADED[:depth]]
    for layer in range(8):
        steps.append(f"compute L{layer}")
        if layer in OFFLOADED:
            behind = OFFLOADED.index(layer) + depth
            steps += [f"copy w{OFFLOADED[behind]} ddr hbm"] if behind < len(OFFLOADED) else []
            steps.append(f"detach w{layer} hbm")
    return "; ".join(steps)


def test_layers_prefetched_one_ahead_stall_on_the_second_of_each_group_only():
    """vllm-project/vllm-ascend #11945: eight layers, depth 1, stalls on layers 3 and 7 only; none at depth 2."""
    h, g = machine("inf"), _layers()
    home = ", ".join(f"w{i} {'ddr' if i in OFFLOADED else 'hbm'}" for i in range(8))
    t = play(h, g, _prefetch(1), home)
    assert waits(t, g) == ["30-35 L3 transfer", "75-80 L7 transfer"]
    t = play(h, g, _prefetch(2), home)
    assert waits(t, g) == []
    assert timeline(t, g, h)[-1] == "70-80 L7"


@pytest.mark.parametrize("layers", [1, 2, 9])
@pytest.mark.parametrize(("copy_ns", "compute_ns"), [(30, 10), (10, 10), (4, 10), (11, 10)])
def test_exposed_time_of_a_uniform_chain_is_its_closed_form(layers, copy_ns, compute_ns):
    """Calculon's rule: a block whose weight is prefetched under the block before exposes max(0, copy - compute).

    The first copy has nothing to hide under: exposed = copy + (layers - 1) * max(0, copy - compute).
    """
    h, g = machine("inf"), chain(layers, weight_bytes=copy_ns, duration_ns=compute_ns)
    steps = Actions()
    steps.copy(0, 1, 0)
    for layer in range(layers):
        steps.compute(layer)
        if layer + 1 < layers:
            steps.copy(layer + 1, 1, 0)
        steps.detach(layer, 0)
    home = ", ".join(f"{t.name} ddr" for t in g.tensors)
    t = play(h, g, steps, home)
    w = t.waits.whole()
    exposed = int((w["end_ns"] - w["start_ns"]).sum())
    assert exposed == copy_ns + (layers - 1) * max(0, copy_ns - compute_ns)
    assert int(t.spans.whole()["end_ns"].max()) == layers * compute_ns + exposed

"""Random graphs with dynamic reads, where their draws come from, and machines for them."""

from __future__ import annotations

from typing import Any

from dynamic_cases import machine, moe
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from simulator.graph import Graph
from simulator.hardware import Hardware, ReactiveHost
from simulator.scenario import DrawsOrigin


def graphs_of(
    layers: int = 3, samples: int = 3, sizes: tuple[int, int] = (0, 30), **more: SearchStrategy[Any]
) -> SearchStrategy[Graph]:
    """Graphs of up to so many layers and samples of a batch; the sizes of experts are between two [B]."""
    experts, each, steps = st.integers(2, 5), st.integers(1, 2), st.integers(1, 4)
    drawn = {"size": st.integers(*sizes), "samples": st.integers(1, samples), "each": each, "steps": steps}
    return st.builds(moe, st.integers(1, layers), experts, **drawn, **more)


graphs = graphs_of()
updating = graphs_of(updates=st.booleans())
"""Some of them update what they have chosen."""
_stickiness = st.sampled_from([0.0, 0.7, 1.0])
_zipf = st.builds(
    DrawsOrigin, distribution=st.just("zipf"), skew=st.sampled_from([0.5, 1.1, 3.0]), stickiness=_stickiness
)
origins = st.builds(DrawsOrigin, distribution=st.just("uniform"), stickiness=_stickiness) | _zipf
seeds = st.integers(0, 99)


@st.composite
def machines(draw) -> Hardware:  # type: ignore[no-untyped-def]
    """Hosts that pay, or not; links that are slow, or not; HBM in which each byte that is read counts, or not."""
    names = ("inspect", "compute", "copy", "detach", "sync", "select", "update")
    costs = [draw(st.integers(0, 4)) for _ in names]
    found = machine(
        h2d={"bandwidth": draw(st.sampled_from(["0.3 GB/s", "2 GB/s"])), "channels": draw(st.integers(1, 2))}
    )
    host = found.host.model_copy(
        update={
            "reactive": ReactiveHost.model_validate({n: f"{c} ns" for n, c in zip(names, costs, strict=True)}),
            "queue_depth": draw(st.integers(1, 9)),
        }
    )
    hbm = found.tiers["hbm"].model_copy(update={"bandwidth_bytes_per_s": draw(st.sampled_from([10**12, 10**9]))})
    return found.model_copy(update={"host": host, "tiers": {**found.tiers, "hbm": hbm}})

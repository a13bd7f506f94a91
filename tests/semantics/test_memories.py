"""Rule 10: the bandwidth of a lower tier binds all copies that pass its memory, as a bus over their links does."""

from __future__ import annotations

import both_engines
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from oracle_cases import Run, ranks_that_meet, staged
from pydantic import ValidationError
from rank_stories import cluster, perform, spans, team
from stories import graph, machine, play, timeline

from simulator.hardware import Bus, Hardware, asked_bytes_per_s, without_effect


def bounded(hardware: Hardware, **rates: str) -> Hardware:
    """The machine with bandwidths of tiers; ``h2d=3`` lets copies over a link pass DDR more often."""
    document = hardware.model_dump(by_alias=True)
    for name, rate in rates.items():
        if name in document["links"]:
            document["links"][name]["passes"] = {"ddr": rate}
        else:
            document["tiers"][name]["bandwidth"] = rate
    return Hardware.model_validate(document)


def test_copies_of_two_ranks_share_the_memory_of_their_node():
    g = team("w 30 persistent", "f: w ->, 5 ns", groups={})
    programs = [(g, "copy w ddr hbm; compute f; detach w hbm")] * 4
    for nodes, end in ((1, 120), (2, 60), (4, 30)):
        h = bounded(cluster(4, nodes, scope="supernode"), ddr="1 GB/s")
        each = [line for rank in range(4) for line in (f"{rank}: 0-{end} h2d w", f"{rank}: {end}-{end + 5} f")]
        assert spans(perform(h, programs, "w ddr"), programs, h) == each


def test_both_ways_share_it_and_a_copy_may_pass_it_thrice():
    g = graph("w 40 input, x 40 input", "f: x -> , 60 ns", "h: w ->, 1 ns")
    plan = "copy x hbm ddr; copy w ddr hbm; compute f; compute h"
    h = machine()
    assert timeline(play(h, g, plan, "x hbm, w ddr"), g, h) == ["0-40 d2h x", "0-40 h2d w", "0-60 f", "60-61 h"]
    h = bounded(machine(), ddr="1 GB/s")
    assert timeline(play(h, g, plan, "x hbm, w ddr"), g, h) == ["0-80 d2h x", "0-80 h2d w", "0-60 f", "80-81 h"]
    h = bounded(machine(), ddr="1 GB/s", h2d=3)
    # each has a quarter of a byte per ns, as w asks for three times that: x ends at 160, and w too
    assert timeline(play(h, g, plan, "x hbm, w ddr"), g, h) == ["0-160 d2h x", "0-160 h2d w", "0-60 f", "160-161 h"]


def test_a_staged_copy_passes_the_memory_between_twice():
    links = {
        "read": {"source": "ssd", "target": "ddr", "bandwidth": "4 GB/s"},
        "h2d": {"bandwidth": "4 GB/s"},
        "over": {"source": "ssd", "target": "hbm", "via": ["read", "h2d"], "chunk": "4 B", "bandwidth": "4 GB/s"},
    }
    g = graph("w 40 input", "f: w -> , 1 ns")
    for rates, end in (({}, 11), ({"ddr": "4 GB/s"}, 21), ({"ddr": "8 GB/s"}, 11), ({"ssd": "2 GB/s"}, 21)):
        h = bounded(machine(**links), **rates)
        assert timeline(play(h, g, "copy w ssd hbm; compute f", "w ssd"), g, h)[0] == f"0-{end} over w"


@given(st.one_of(ranks_that_meet(), staged()))
def test_it_is_a_bus_over_the_links_at_the_tier(run: Run):
    """A bus of the same links, scope and rate does the same, bit for bit, in both engines."""
    hardware = run.hardware
    tiers = {name: tier.model_copy(update={"bandwidth_bytes_per_s": None}) for name, tier in hardware.tiers.items()}
    buses = dict(hardware.buses)
    for name, tier in list(hardware.tiers.items())[1:]:
        if tier.bandwidth_bytes_per_s is not None:
            wires = {link: way for link, way in hardware.links.items() if name in (way.source, way.target)}
            capped = [link for link, way in wires.items() if not way.via for _ in range(way.passes.get(name, 1))]
            rate = tier.bandwidth_bytes_per_s
            buses[f"of_{name}"] = Bus.model_construct(links=tuple(capped), bandwidth_bytes_per_s=rate, scope=tier.scope)
    tiers["hbm"] = hardware.tiers["hbm"]
    stated = hardware.model_copy(update={"tiers": tiers, "buses": buses})
    assert stated.caps == stated.buses == buses
    event("with a memory" if hardware.memories else "without")
    ours, theirs = (both_engines.run(run.programs, h, budget_bytes=run.budget_bytes) for h in (hardware, stated))
    assert ours.status == theirs.status
    assert both_engines.differences(ours, theirs) == []


def test_what_is_asked_of_a_memory_counts_passes_and_it_is_named_by_its_tier():
    h = bounded(cluster(4, 2, h2d={"bandwidth": "2 GB/s"}), ddr="3 GB/s", h2d=3)
    assert h.memories == {"memory.ddr": "ddr"}
    assert asked_bytes_per_s(h, h.caps["memory.ddr"]) == 2 * (1 + 3 * 2) * 10**9
    wide = bounded(machine(), ddr="9 GB/s")
    (told,) = without_effect(wide, None, ["tiers.ddr.bandwidth"])
    assert told.startswith("tiers.ddr.bandwidth is 9.00 GB/s, but the sum of its links is 2.00 GB/s")


@pytest.mark.parametrize("passes", [{"hbm": 2}, {"pool": 2}, {"ddr": 0}])
def test_passes_name_a_lower_tier_of_the_link(passes):
    with pytest.raises(ValidationError, match="passes"):
        machine(h2d={"passes": passes})


def test_a_staged_link_has_no_passes_of_its_own():
    links = {"read": {"source": "ssd", "target": "ddr"}, "over": {"source": "ssd", "target": "hbm",
             "via": ["read", "h2d"], "chunk": "4 B", "passes": {"ssd": 2}}}  # fmt: skip
    with pytest.raises(ValidationError, match="passes name lower tiers that the link joins, of no staged link"):
        machine(**links)

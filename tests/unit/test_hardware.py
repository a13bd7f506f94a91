"""The hardware profile: what it says, and what it refuses."""

import math

import pytest
from pydantic import ValidationError

from simulator.hardware import Hardware
from simulator.units import FieldError


def machine(**more):
    data = {
        "name": "toy",
        "compute_tier": "hbm",
        "compute": {"peak": {"bf16": "100 TFLOP/s"}},
        "tiers": {"hbm": {"capacity": "64 GB", "bandwidth": "1.6 TB/s"}, "ddr": {"capacity": "inf"}},
        "links": {
            "d2h": {"source": "hbm", "target": "ddr", "bandwidth": "33.6 GB/s"},
            "h2d": {"source": "ddr", "target": "hbm", "bandwidth": "33.6 GB/s", "latency": "10 us"},
        },
    }
    return data | more


def refusal(data):
    """The first thing that the machine refuses: path and message."""
    with pytest.raises(ValidationError) as caught:
        Hardware.model_validate(data)
    item = caught.value.errors()[0]
    said = item["ctx"]["error"]
    assert isinstance(said, FieldError)
    return ".".join((*map(str, item["loc"]), *said.path)), str(said)


def test_holds_whole_numbers_and_names_in_order():
    hw = Hardware.model_validate(machine())
    assert hw.tier_names == ("hbm", "ddr")
    assert hw.link_names == ("d2h", "h2d")
    assert hw.tiers["hbm"].usable_bytes == 64_000_000_000
    assert hw.tiers["ddr"].capacity_bytes == math.inf
    assert hw.links["h2d"].latency_ns == 10_000


def test_each_link_waits_in_one_queue():
    assert Hardware.model_validate(machine()).queues == (("d2h",), ("h2d",))
    shared = machine(copy_queues={"copies": ["h2d", "d2h"]})
    assert Hardware.model_validate(shared).queues == (("h2d", "d2h"),)


def test_reserved_room_is_not_usable():
    tiers = {"hbm": {"capacity": "64 GB", "reserved": "4 GB", "bandwidth": "1.6 TB/s"}, "ddr": {"capacity": "inf"}}
    assert Hardware.model_validate(machine(tiers=tiers)).tiers["hbm"].usable_bytes == 60_000_000_000


def test_python_writes_the_same_machine():
    hw = Hardware.model_validate(machine())
    assert Hardware.model_validate(hw.model_dump()) == hw


def test_a_tier_may_be_read_only():
    links = {
        "read": {"source": "ssd", "target": "ddr", "bandwidth": "7 GB/s"},
        "h2d": {"source": "ddr", "target": "hbm", "bandwidth": "33.6 GB/s"},
    }
    tiers = machine()["tiers"] | {"ssd": {"capacity": "inf"}}
    assert Hardware.model_validate(machine(tiers=tiers, links=links)).link_names == ("read", "h2d")


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        (
            {"copy_queues": {"copies": ["d2h", "h2h"]}},
            "copy_queues.copies",
            "a copy queue serves links, found 'h2h'; use one of d2h, h2d (did you mean 'h2d'?)",
        ),
        (
            {"copy_queues": {"copies": ["d2h"], "more": ["h2d", "d2h"]}},
            "copy_queues.copies",
            "a link waits in one queue, found 'd2h' twice; correct it",
        ),
        (
            {"copy_queues": {"copies": ["d2h", "d2h"]}},
            "copy_queues.copies",
            "a link waits in one queue, found 'd2h' twice; correct it",
        ),
        (
            {
                "links": {
                    "d2h": {"source": "hbm", "target": "ddr", "bandwidth": "1 GB/s", "channels": 2},
                    "h2d": {"source": "ddr", "target": "hbm", "bandwidth": "1 GB/s"},
                },
                "copy_queues": {"copies": ["d2h", "h2d"]},
            },
            "copy_queues.copies",
            "the links of a queue have the same channels, found 2, 1; correct it",
        ),
        (
            {"compute_tier": "hbn"},
            "compute_tier",
            "the compute tier is one of the tiers, found 'hbn'; use one of hbm, ddr (did you mean 'hbm'?)",
        ),
        (
            {"compute_tier": "ddr"},
            "tiers.ddr",
            "the compute tier has a bandwidth, found none; add it",
        ),
        (
            {"host_compute": {"tier": "hbm", "peak": {"fp32": "1 TFLOP/s"}}},
            "host_compute.tier",
            "the cores of the host work in another tier than the compute tier, found 'hbm'; name that of the host",
        ),
        (
            {"host_compute": {"tier": "ddr", "peak": {"fp32": "1 TFLOP/s"}}},
            "tiers.ddr",
            "the tier that the cores of the host work in has a bandwidth, found none; add it",
        ),
        (
            {"links": {"up": {"source": "hbm", "target": "dram", "bandwidth": "1 GB/s"}}},
            "links.up.target",
            "a link joins two tiers, found 'dram'; use one of hbm, ddr",
        ),
        (
            {"links": {"up": {"source": "hbm", "target": "hbm", "bandwidth": "1 GB/s"}}},
            "links.up",
            "a link joins two different tiers, found 'hbm' twice; change one end",
        ),
        (
            {"links": {}},
            "tiers.ddr",
            (
                "links join every tier with the compute tier 'hbm', found none to or from 'ddr'; "
                "add one, or remove the tier"
            ),
        ),
        (
            {"buses": {"pcie": {"links": ["d2h", "up"], "bandwidth": "1 GB/s"}}},
            "buses.pcie.links",
            "a bus caps links and ports of fabrics, found 'up'; use one of d2h, h2d",
        ),
        (
            {"buses": {"pcie": {"links": ["d2h", "d2h"], "bandwidth": "1 GB/s"}}},
            "buses.pcie.links",
            "a bus names each link once, found d2h, d2h; correct it",
        ),
        (
            {"tiers": {"hbm": {"capacity": "1 GB", "reserved": "2 GB", "bandwidth": "1 TB/s"}}},
            "tiers.hbm.reserved",
            "reserved memory is part of the capacity, found 2,000,000,000 of 1,000,000,000 B; lower it",
        ),
        (
            {
                "links": {
                    "d2h": {
                        "source": "hbm",
                        "target": "ddr",
                        "bandwidth": "1 GB/s",
                        "efficiency": [{"size": "1 MB", "fraction": 0.5}, {"size": "1 kB", "fraction": 0.1}],
                    }
                }
            },
            "links.d2h.efficiency",
            ("the sizes of the curve are above 0 B and increase, found 1,000,000 B, 1,000 B; sort the points"),
        ),
        (
            {
                "links": {
                    "d2h": {
                        "source": "hbm",
                        "target": "ddr",
                        "bandwidth": "1 GB/s",
                        "efficiency": [{"size": "0 B", "fraction": 0.5}],
                    }
                }
            },
            "links.d2h.efficiency",
            "the sizes of the curve are above 0 B and increase, found 0 B; sort the points",
        ),
        (
            {"tiers": {"hbm": {"capacity": "1 GB", "bandwidth": "1 TB/s", "scope": "node"}}},
            "tiers.hbm.scope",
            "each device has a compute tier of its own, found scope node; set it to device",
        ),
        (
            {"fabrics": {"wire": {"bandwidth": "1 GB/s"}}, "topology": {"nodes": 4}},
            "fabrics.wire",
            (
                "a fabric joins devices with one another (each node has several), found one device; "
                "raise topology.devices_per_node, or set its scope to supernode and raise topology.nodes"
            ),
        ),
        (
            {"fabrics": {"d2h": {"bandwidth": "1 GB/s"}}, "topology": {"devices_per_node": 4}},
            "fabrics.d2h",
            "a fabric and a link have different names, found both 'd2h'; correct it",
        ),
        (
            {
                "fabrics": {"wire": {"bandwidth": "1 GB/s", "algorithms": {"all_gather": ["ring", "tree"]}}},
                "topology": {"devices_per_node": 4},
            },
            "fabrics.wire.algorithms.all_gather",
            "the algorithms of all_gather are ring, direct, found 'tree'; remove it",
        ),
        (
            {
                "fabrics": {"wire": {"bandwidth": "1 GB/s"}},
                "topology": {"devices_per_node": 4},
                "buses": {"port": {"links": ["d2h", "wire.outwards"], "bandwidth": "1 GB/s"}},
            },
            "buses.port.links",
            (
                "a bus caps links and ports of fabrics, found 'wire.outwards'; "
                "use one of d2h, h2d, wire.out, wire.in (did you mean 'wire.out'?)"
            ),
        ),
        (
            {"tiers": {"hbm": {"capacity": "-1 GB", "bandwidth": "1 TB/s"}}},
            "tiers.hbm.capacity",
            "a size is at least 0 B and below 2^63, found '-1 GB'; 'inf' means no limit",
        ),
        (
            {"links": {"d2h": {"source": "hbm", "target": "ddr", "bandwidth": "0 B/s"}}},
            "links.d2h.bandwidth",
            "a rate is more than 0 B/s, such as '33.6 GB/s', found '0 B/s'; write a positive rate",
        ),
    ],
)
def test_refuses_what_cannot_be(more, path, message):
    assert refusal(machine(**more)) == (path, message)


def test_a_supernode_of_single_devices_is_joined_by_a_fabric_of_its_own_scope():
    wide = {"scope": "supernode", "bandwidth": "1 GB/s", "planes": 2, "algorithms": {"all_reduce": ["ring"]}}
    topology, bus = {"nodes": 8}, {"port": {"links": ["d2h", "wide.out"], "bandwidth": "1 GB/s"}}
    hw = Hardware.model_validate(machine(fabrics={"wide": wide}, topology=topology, buses=bus))
    assert hw.topology.devices == 8
    assert (hw.fabrics["wide"].choices("all_reduce"), hw.fabrics["wide"].choices("broadcast")) == (
        ("ring",),
        ("ring", "tree"),
    )
    assert Hardware.model_validate(hw.model_dump()) == hw


@pytest.mark.parametrize("fraction", [0, 0.0, 1.1, -0.5, True, "0.5", math.nan])
def test_a_share_is_a_number_above_0_and_at_most_1(fraction):
    compute = {"peak": {"bf16": "1 TFLOP/s"}, "achieved_bandwidth": fraction}
    with pytest.raises(ValidationError, match="achieved_bandwidth"):
        Hardware.model_validate(machine(compute=compute))

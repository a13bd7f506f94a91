"""Software profiles: what each field does to a small run, to the nanosecond and the byte."""

import chain
import pytest
from hypothesis import given
from hypothesis import strategies as some

import simulator as hosim
from simulator import catalog
from simulator.builders import build_job
from simulator.catalog.driven import drive
from simulator.cost import durations_ns
from simulator.cost.service import transfer_ns
from simulator.engine import using
from simulator.errors import ConfigError
from simulator.software import Software

pytestmark = pytest.mark.usefixtures("quick_plans")

PROFILE = "schema: hosim/software/1\nname: soft\ntitle: a framework for tests\n"


def driven(folder, profile, *, machine=chain.MACHINE, scenario=chain.SCENARIO, **options):
    """Run the chain with the software that the lines of `profile` describe."""
    (folder / "soft.yaml").write_text(PROFILE + profile, encoding="utf-8")
    return hosim.run(chain.write(folder, machine=machine, scenario=scenario + "software: soft.yaml\n"), **options)


def test_without_software_a_run_is_called_the_best_case(tmp_path):
    results = hosim.run(chain.write(tmp_path))
    assert results.card["software"] == {"best case:": "pinned copies, best kernels (no software named)"}
    assert driven(tmp_path, "").card["software"] == {"soft:": "a framework for tests"}


def test_a_profile_that_says_nothing_changes_nothing(tmp_path):
    plain, empty = hosim.run(chain.write(tmp_path)), driven(tmp_path, "")
    assert empty.summaries == plain.summaries
    assert empty.case.hardware == plain.case.hardware


@pytest.mark.parametrize(
    ("copies", "rates_and_latencies"),
    [
        ("default: {mode: pageable, share: 0.25}", ("1 GB/s", "1 GB/s", "0 ns", "0 ns")),
        ("in: {mode: bounced, share: 0.3, latency: 7 us}", ("4 GB/s", "1.2 GB/s", "0 ns", "7 us")),
        (
            "default: {mode: pageable, rate: 3 GB/s}, out: {mode: pageable, rate: 5 GB/s}",
            ("4 GB/s", "3 GB/s", "0 ns", "0 ns"),
        ),
        ("out: {mode: unified, share: 0.1}", ("400 MB/s", "4 GB/s", "0 ns", "0 ns")),
        (
            "out: {mode: staged, share: 0.5}, links: {'*2*': {latency: 1 us}, d2h: {}}",
            ("4 GB/s", "4 GB/s", "0 ns", "1 us"),
        ),
    ],
)
def test_copies_have_the_rate_of_their_mode(tmp_path, copies, rates_and_latencies):
    machine = driven(tmp_path, f"copies: {{{copies}}}\n").case.loaded.hardware
    links = machine.model_dump(mode="json", by_alias=True)["links"]
    found = (*(links[name]["bandwidth"] for name in links), *(links[name]["latency"] for name in links))
    assert found == rates_and_latencies


def test_a_copy_takes_as_long_as_its_mode_makes_it(tmp_path):
    spans = driven(tmp_path, "copies: {in: {mode: pageable, share: 0.25, latency: 10 us}}\n")["static"].spans
    copies = spans[spans.kind == "transfer"]
    took = {link: set(some.end_ns - some.start_ns) for link, some in copies.groupby("track")}
    assert took == {"d2h": {250_000}, "h2d": {1_010_000}}


ONE_AHEAD = chain.MACHINE.replace("tiers:", "host: {queue_depth: 1}\ntiers:", 1)
"""A machine whose host pays for an op while the two before it wait and run, for 200 us."""


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
@pytest.mark.parametrize("policy", ["resident", "reactive"])
@pytest.mark.parametrize(
    ("host", "more_ns"),
    [
        ("op: 150 us", 13 * 50_000),  # an op takes 100 us, so that the device waits for its host
        ("op: 90 us", 0),
        ("step: 1 ms", 800_000),
        ("layer: 200 us", 100_000),  # of bwd, update and fwd, the latter two follow one another
        ("{layer: 200 us, step: 1 ms}", 1_100_000),
    ],
)
def test_a_host_that_pays_more_than_the_device_takes_sets_the_pace(tmp_path, engine, policy, host, more_ns):
    scenario = chain.SCENARIO.partition("budget")[0] + f"policies: [{policy}]\n"
    line = f"host: {host if host[0] == '{' else '{' + host + '}'}\n"
    with using(engine):
        row = driven(tmp_path, line, machine=ONE_AHEAD, scenario=scenario)[policy]
    assert row.summary["step_ns"] == 13 * 100_000 + more_ns
    assert row.summary["wait_host_ns"] + row.summary["wait_order_ns"] == more_ns


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def test_each_copy_costs_the_host_under_any_plan(tmp_path, engine):
    with using(engine):
        rows = driven(tmp_path, "host: {copy: 1 ms}\n", policies=["static", "reactive"])
    for row in rows.values():
        issued = row.spans[row.spans.kind == "transfer"].sort_values("issue").issued_ns
        assert len(issued) > 3
        assert (issued.diff().dropna() >= 1_000_000).all()


def test_the_host_issues_nothing_until_a_copy_that_blocks_it_has_ended(tmp_path):
    profile = "copies: {in: {mode: pageable, share: 0.5}}\n"
    rows = driven(tmp_path, profile, policies=["static", "reactive"])
    with using("compiled"), pytest.raises(ConfigError, match="found the host waits for copies; choose auto"):
        driven(tmp_path, profile)
    for row in rows.values():
        spans = row.spans.sort_values("issue")
        blocking = spans[(spans.kind == "transfer") & (spans.track == "h2d")]
        assert len(blocking) > 1
        for copy in blocking.itertuples():
            later = spans[spans.issue > copy.issue].issued_ns
            assert later.empty or later.min() >= copy.end_ns
        assert row.summary["wait_transfer_ns"] > 0


def test_a_pageable_copy_passes_the_memory_below_three_times(tmp_path):
    """At 250 us for 1 MB over the link, 12 GB/s of memory are just enough for three passes; 6 GB/s are half of that."""
    for rate, took_ns in (("12 GB/s", 250_000), ("6 GB/s", 500_000)):
        machine = chain.MACHINE.replace("ddr: {capacity: 1 GB}", f"ddr: {{capacity: 1 GB, bandwidth: {rate}}}")
        profile = "copies: {in: {mode: bounced, share: 1.0}}\n"
        spans = driven(tmp_path, profile, machine=machine, policies=["static"])["static"].spans
        alone = spans[(spans.kind == "transfer") & (spans.track == "h2d")]
        assert set(alone.end_ns - alone.start_ns) == {took_ns}


def test_a_serving_engine_pays_for_iterations_and_requests_and_no_step(tmp_path):
    host = "host: {step: 1 s, iteration: 5 ms, request: 1 ms, ahead: true}\n"
    (tmp_path / "soft.yaml").write_text(PROFILE + host, encoding="utf-8")
    for workload, step_ns, iteration_ns in (("llama31_8b_hits", 0, 5_000_000), ("llama31_8b_decode", 10**9, 0)):
        asked = {"software": str(tmp_path / "soft.yaml")}
        machine = catalog.resolve(catalog.scenario_of("h100_sxm", workload), asked).hardware.host
        assert (machine.each_step_ns, machine.serving.iteration_ns) == (step_ns, iteration_ns)
        assert (machine.serving.request_ns, machine.serving.ahead) == (iteration_ns // 5, iteration_ns > 0)


@pytest.mark.parametrize(
    ("classes", "ns"),
    [
        ("matmul_w4: 42 us", 42_000),
        ("matmul_w4: 42 us, matmul: 1 ms", 42_000),
        ("matmul: 1 ms, matmul_w8: 2 ms", 10**6),
        ("vector: 1 ms", 1),
    ],
)
def test_the_host_pays_for_each_op_of_a_class(tmp_path, classes, ns):
    (tmp_path / "soft.yaml").write_text(PROFILE + f"host: {{class: {{{classes}}}}}\n", encoding="utf-8")
    scenario = chain.SCENARIO.partition("budget")[0] + "policies: [resident]\nsoftware: soft.yaml\n"
    path = chain.write(tmp_path, scenario=scenario)
    about = {"reads": [], "writes": [], "flops": 1, "op_class": "matmul_w4", "read_bytes": 1, "write_bytes": 0}
    chain.write_lines(tmp_path / "graph.jsonl", [{"schema": "hosim-graph/1", "name": "one"}, {"op": "one", **about}])
    assert ns <= hosim.run(path)["resident"].summary["step_ns"] <= ns + 10
    with pytest.raises(ConfigError, match=r"host.class: figures are of classes of ops, found 'matmul_w5'; use one of"):
        driven(tmp_path, "host: {class: {matmul_w5: 1 us}}\n")


CORES = {"host_compute": {"tier": "ddr", "peak": {"bf16": "1 TFLOP/s"}}, "tiers.ddr.bandwidth": "1 TB/s"}
"""A host whose cores are as fast as the device."""


def one_op(
    folder, kernels, *, flops=10**9, size_bytes=10**6, op_class="matmul", device="accelerator", sockets=1, share=1.0
):
    """Run a single op of so many FLOPs and bytes; return its time [ns]."""
    about = {"flops": flops, "op_class": op_class, "read_bytes": size_bytes, "write_bytes": 0, "device": device}
    lines = [{"schema": "hosim-graph/1", "name": "one", "steps": 2}, {"op": "one", "reads": [], "writes": [], **about}]
    scenario = chain.SCENARIO.partition("budget")[0] + "policies: [resident]\nsoftware: soft.yaml\n"
    path = chain.write(folder, scenario=scenario)
    chain.write_lines(folder / "graph.jsonl", lines)
    said = f"cores: {{{kernels}}}\n" if device == "host" else f"kernels: {{default: {{{kernels}}}}}\n"
    (folder / "soft.yaml").write_text(PROFILE + said, encoding="utf-8")
    return hosim.run(path, set=CORES | {"host_compute.sockets": sockets, "host_compute.achieved_bandwidth": share})[
        "resident"
    ].summary["step_ns"]


_HALF, _QUARTER = "arithmetic: {matmul: 0.5}", "{arithmetic: {matmul: 0.25}}"


@pytest.mark.parametrize(
    ("kernels", "ns"),
    [
        ("arithmetic: {matmul: 0.5}", 2_000_000),
        ("arithmetic: {default: 0.25, vector: 0.5}", 4_000_000),
        ("arithmetic: {vector: 0.5}", 1_000_000),
        ("fill: 3 us", 1_003_000),
        ("launch: 5 us", 1_005_000),
        ("bandwidth: 0.5", 1_000_000),
        (f"{_HALF}, machines: {{'*': {{arithmetic: {{matmul: 0.1}}}}, 'bench_*': {_QUARTER}}}", 4_000_000),
        (f"{_HALF}, machines: {{'bench_*': {{arithmetic: {{vector: 0.1}}}}, 'large': {_QUARTER}}}", 2_000_000),
    ],
)
@pytest.mark.parametrize("device", ["accelerator", "host"])
def test_arithmetic_takes_as_long_as_its_share_makes_it(tmp_path, kernels, device, ns):
    assert one_op(tmp_path, kernels, device=device) == ns


@pytest.mark.parametrize(
    ("kernels", "sockets", "ns"),
    [
        ("sockets: 0.25", 1, 1_000_000),
        ("sockets: 1.0", 2, 1_000_000),
        ("sockets: 0.25", 2, 1_600_000),
        ("sockets: 0.0", 4, 4_000_000),
        ("sockets: 0.25, arithmetic: {matmul: 0.5}", 2, 3_200_000),
        (f"sockets: 0.25, {_HALF}, machines: {{'bench_*': {_QUARTER}}}", 2, 6_400_000),
    ],
)
def test_a_further_socket_adds_a_share_of_what_the_first_reaches(tmp_path, kernels, sockets, ns):
    assert one_op(tmp_path, kernels, device="host", sockets=sockets) == ns
    bytes_alone = {"flops": 0, "size_bytes": 10**9, "op_class": "vector"}  # at 1 TB/s
    usual = one_op(tmp_path, "bandwidth: 0.5", device="host", **bytes_alone)
    shared = one_op(tmp_path, f"bandwidth: 0.5, {kernels}", device="host", sockets=sockets, **bytes_alone)
    less = one_op(tmp_path, kernels, device="host", sockets=sockets, share=0.25, **bytes_alone)
    added = float(kernels.split(",")[0].partition(": ")[2])
    assert less * (1 + (sockets - 1) * added) == 2 * usual * sockets, "of what the machine's own cores reach, too"
    assert shared * (1 + (sockets - 1) * added) == usual * sockets


@pytest.mark.parametrize(
    ("shares", "ns"),
    [
        ("attention: 0.5", 2_000_000),
        ("attention: 0.5, attention_backward: 0.25", 4_000_000),
        ("default: 0.5", 2_000_000),
        ("default: 0.5, attention_backward: 0.25", 4_000_000),
    ],
)
def test_backward_of_attention_reaches_what_attention_does_where_nothing_else_is_said(tmp_path, shares, ns):
    assert one_op(tmp_path, f"arithmetic: {{{shares}}}", op_class="attention_backward") == ns


@pytest.mark.parametrize(
    ("shares", "ns"),
    [
        ("bandwidth: 0.5, fill: 3 us", 2_000_000),
        ("bandwidth: 0.5, class_bandwidth: {matmul_w4: 0.25}", 4_000_000),
        ("bandwidth: 0.5, class_bandwidth: {matmul: 0.25}", 4_000_000),
        ("bandwidth: 0.25, class_bandwidth: {matmul: 0.5}", 2_000_000),
        ("bandwidth: 0.5, class_bandwidth: {matmul_w8: 0.25, vector: 0.1}", 2_000_000),
        ("class_bandwidth: {matmul: 0.5}, machines: {'bench_*': {class_bandwidth: {matmul_w4: 0.125}}}", 8_000_000),
        ("class_bandwidth: {matmul: 0.5}, machines: {large: {class_bandwidth: {matmul_w4: 0.1}}}", 2_000_000),
    ],
)
@pytest.mark.parametrize("device", ["accelerator", "host"])
def test_traffic_takes_as_long_as_its_share_makes_it(tmp_path, shares, device, ns):
    assert one_op(tmp_path, shares, flops=1, size_bytes=10**9, op_class="matmul_w4", device=device) == ns


@pytest.mark.parametrize(("of_machine", "ns"), [(0.125, 8_000_000), (0.5, 4_000_000)])
def test_where_machine_and_software_state_a_share_of_traffic_the_slower_one_holds(tmp_path, of_machine, ns):
    path = chain.write(
        tmp_path, scenario=chain.SCENARIO.partition("budget")[0] + "policies: [resident]\nsoftware: soft.yaml\n"
    )
    (tmp_path / "soft.yaml").write_text(PROFILE + "kernels: {default: {class_bandwidth: {matmul_w4: 0.25}}}\n")
    about = {"reads": [], "writes": [], "flops": 1, "op_class": "matmul_w4", "read_bytes": 10**9, "write_bytes": 0}
    chain.write_lines(tmp_path / "graph.jsonl", [{"schema": "hosim-graph/1", "name": "one"}, {"op": "one", **about}])
    row = hosim.run(path, set={"compute.class_bandwidth": {"matmul_w4": of_machine}})["resident"]
    assert row.summary["step_ns"] == ns


KINDS = """kernels:
  train: {arithmetic: {matmul: 0.1}, bandwidth: 0.1}
  prefill: {arithmetic: {matmul: 0.2}, bandwidth: 0.2}
  decode: {arithmetic: {matmul: 0.3}, bandwidth: 0.3, launch: 50 us}
  default: {arithmetic: {matmul: 0.4}, bandwidth: 0.4}
"""


@pytest.mark.parametrize(("other", "matmul"), [("decode", 0.3), ("prefill", 0.4)])
def test_kernels_of_a_job_are_those_of_its_programs_if_they_are_of_one_kind(tmp_path, other, matmul):
    work = "{model: {family: llama, layers: 1, hidden: 8, heads: 2, kv_heads: 1, ffn: 8, vocabulary: 8}, phase: PHASE, "
    work += "batch: 1, sequence: 8, parallel: {ranks: all}}"
    programs = [
        f"  {name}: {{workload: {work.replace('PHASE', phase)}, ranks: 1}}"
        for name, phase in (("a", "decode"), ("b", other))
    ]
    head = "schema: hosim/job/1\nname: job\nprograms:\n"
    (tmp_path / "job.yaml").write_text(
        head + "\n".join([*programs, "  tool: {delay: 1 ms, ranks: 1}\n"]), encoding="utf-8"
    )
    (tmp_path / "soft.yaml").write_text(PROFILE + KINDS, encoding="utf-8")
    asked = {"software": str(tmp_path / "soft.yaml")}
    machine = catalog.resolve(catalog.scenario_of("dgx_a100", str(tmp_path / "job.yaml")), asked).hardware
    assert machine.compute.achieved_fraction["matmul"] == matmul


@pytest.mark.parametrize(
    ("workload", "matmul", "bandwidth"),
    [
        ("tiny_train", 0.1, 0.1),
        ("llama31_8b_decode", 0.3, 0.3),
        ("llama31_8b_hits", 0.2, 0.3),  # it serves: the arithmetic of prefill, the bandwidth of decode
    ],
)
def test_shares_are_those_of_the_kind_of_run(tmp_path, workload, matmul, bandwidth):
    (tmp_path / "soft.yaml").write_text(PROFILE + KINDS, encoding="utf-8")
    document = catalog.scenario_of("h100_sxm", workload)
    loaded = catalog.resolve(document, {"software": str(tmp_path / "soft.yaml")})
    compute = loaded.hardware.compute
    assert (compute.achieved_fraction["matmul"], compute.achieved_bandwidth_fraction) == (matmul, bandwidth)
    assert compute.launch_ns == (50_000 if bandwidth == 0.3 else loaded.stated.compute.launch_ns)


def test_memory_that_is_no_tensor_leaves_less_room_and_counts_in_what_a_driver_shows(tmp_path):
    memory = "memory: {taken: 0.5, context: 40 MB, workspace: 2 MB, communication: 7 MB, lost: 0.4}\n"
    scenario = chain.SCENARIO.replace("budget: 4.3 MB\n", "").replace("  budget: room for four activations\n", "")
    scenario = scenario.replace("assumed:\n", "")
    row = driven(tmp_path, memory, scenario=scenario, policies=["resident"])["resident"]
    tier = row.hardware.tiers["hbm"]
    assert (tier.capacity_bytes, tier.reserved_bytes, tier.usable_bytes) == (100_000_000, 42_000_000, 4_800_000)
    plain = hosim.run(chain.write(tmp_path, scenario=scenario), policies=["resident"])["resident"].summary
    assert row.status == "infeasible"
    assert (plain["peak_hbm_bytes"], "process_hbm_bytes" in plain) == (6_200_000, False)


def test_what_a_driver_shows_is_the_peak_with_what_is_lost_and_reserved(tmp_path):
    row = driven(tmp_path, "memory: {context: 40 MB, lost: 0.2}\n", policies=["static"])["static"]
    peak = row.summary["peak_hbm_bytes"]
    assert row.summary["process_hbm_bytes"] == 40_000_000 + -(-peak * 5 // 4) > peak
    assert row.hardware.tiers["hbm"].held_bytes(peak) == row.summary["process_hbm_bytes"]


def test_what_a_driver_shows_of_addresses_is_what_the_allocator_kept_and_what_is_reserved(tmp_path):
    cached = chain.SCENARIO.replace("- static", "- {policy: static, allocator: caching}")
    memory = "memory: {context: 40 MB, lost: 0.2}\n"
    summary = driven(tmp_path, memory, scenario=cached, policies=["static"])["static"].summary
    assert summary["process_hbm_bytes"] == 40_000_000 + summary["peak_reserved_hbm_bytes"]


def test_collectives_have_buffers_only_where_there_are_several_ranks(tmp_path):
    (tmp_path / "soft.yaml").write_text(PROFILE + "memory: {communication: 7 MB}\n", encoding="utf-8")
    for workload, kept in (("llama3_8b_train_2x2x2", 7_000_000), ("llama3_8b_train", 0)):
        asked = {"software": str(tmp_path / "soft.yaml")}
        loaded = catalog.resolve(catalog.scenario_of("dgx_h100", workload), asked)
        assert loaded.hardware.tiers["hbm"].reserved_bytes == kept


MISTAKES = {
    "for: [h100*, gh200]": (
        "soft.yaml:4, for: a machine is one that its software is for, found 'bench_machine', and for: h100*, gh200; "
        "name other software, or change for"
    ),
    "for: ['*', '!bench*']": (
        "soft.yaml:4, for: a machine is one that its software is for, found 'bench_machine', and for: *, !bench*; name "
        "other software, or change for"
    ),
    "copies: {in: {mode: pageable}}": (
        "soft.yaml:4, copies.in.share: copies that are not pinned have a share of the link's bandwidth, or a rate, "
        "found pageable without either; add one, or write mode: pinned"
    ),
    "copies: {links: {nvme*: {share: 0.5}}}": (
        "soft.yaml:4, copies.links.nvme*: copies.links names links of the machine that go via no other, "
        "found 'nvme*'; use one of d2h, h2d"
    ),
    "copies: {out: {share: 1.5}}": (
        "soft.yaml:4, copies.out.share: input should be less than or equal to 1, found 1.5; correct it"
    ),
    "copies: {out: {mode: magic}}": (
        "soft.yaml:4, copies.out.mode: input should be 'pinned', 'pageable', 'bounced', 'staged' or 'unified', found "
        "'magic'; use one of pinned, pageable, bounced, staged, unified"
    ),
    "kernels: {train: {arithmetic: {matmul: 1.1}}}": (
        "soft.yaml:4, kernels.train.arithmetic.matmul: input should be less than or equal to 1, found 1.1; correct it"
    ),
    "kernels: {default: {arithmetic: {matmull: 0.5}}}": (
        "soft.yaml:4, kernels.default.arithmetic: figures are of classes of ops, found 'matmull'; use one of matmul, "
        "matmul_w8, matmul_w4, attention, attention_backward, vector, dequantize, default (did you mean 'matmul'?); a "
        "graph may have classes of its own"
    ),
    "kernels: {default: {machines: {'x*': {arithmetic: {gemm: 0.5}}}}}": (
        "soft.yaml:4, kernels.default.machines.x*.arithmetic: figures are of classes of ops, found 'gemm'; use one of "
        "matmul, matmul_w8, matmul_w4, attention, attention_backward, vector, dequantize, default; a graph may have "
        "classes of its own"
    ),
    "kernels: {default: {class_bandwidth: {default: 0.5}}}": (
        "soft.yaml:4, kernels.default.class_bandwidth.default: a figure is of a class of ops, found 'default'; set the "
        "figure for all of them"
    ),
    "kernels: {default: {class_bandwidth: {gemm: 0.5}}}": (
        "soft.yaml:4, kernels.default.class_bandwidth: figures are of classes of ops, found 'gemm'; use one of matmul, "
        "matmul_w8, matmul_w4, attention, attention_backward, vector, dequantize; a graph may have classes of its own"
    ),
    "kernels: {default: {machines: {'x*': {}}}}": (
        "soft.yaml:4, kernels.default.machines.x*: kernels reach other shares on such machines, found none; "
        "state arithmetic or class_bandwidth"
    ),
    "memory: {context: 200 MB}": (
        "soft.yaml:4, memory: reserved memory is part of the capacity, found 200,000,000 of 100,000,000 B; lower it"
    ),
}


@pytest.mark.parametrize("profile", MISTAKES)
def test_mistakes_have_one_clear_message(tmp_path, profile):
    with pytest.raises(ConfigError) as caught:
        driven(tmp_path, profile + "\n")
    assert str(caught.value).replace(f"{tmp_path}/", "") == MISTAKES[profile]


def test_a_scenario_names_software_that_is_there(tmp_path):
    with pytest.raises(ConfigError, match="a software document has a name in the catalogue, or a path that ends in"):
        hosim.run(chain.write(tmp_path), software="nobody")
    with pytest.raises(ConfigError, match="only a scenario that names software can change it, found none"):
        hosim.run(chain.write(tmp_path), set={"software.host.op": "1 us"})


@pytest.mark.slow
def test_documents_of_a_run_read_back_equal_and_are_named(tmp_path, quick_plans):
    profile = "copies: {in: {mode: pageable, share: 0.25}}\nassumed: {copies: for tests}\n"
    results = driven(tmp_path, profile, set={"links.h2d.bandwidth": "2 GB/s", "software.host.op": "3 us"})
    first, out = results.case.loaded, tmp_path / "out"
    results.write(out)
    again = catalog.resolve(out / "scenario.yaml")
    assert {
        name: again.documents()[name] for name in ("hardware.yaml", "software.yaml")
    }.items() <= first.documents().items()
    assert again.hardware == first.hardware
    assert again.hardware.links["h2d"].bandwidth_bytes_per_s == 500_000_000
    assert again.software == first.software
    assert hosim.run(out / "scenario.yaml").summaries == results.summaries
    (named,) = [one for one in results.provenance["inputs"] if one["kind"] == "software"]
    assert (named["name"], len(named["sha256"]), len(named["content"])) == ("soft", 64, 64)
    assert {"document": "bench_machine", "field": "links.h2d.bandwidth", "why": "for tests"} in results.provenance[
        "assumed"
    ]


@pytest.mark.slow
def test_software_is_an_axis(tmp_path):
    (tmp_path / "soft.yaml").write_text(PROFILE + "copies: {default: {mode: bounced, share: 0.25}}\n", encoding="utf-8")
    path, soft = chain.write(tmp_path), str(tmp_path / "soft.yaml")
    swept = hosim.sweep(path, grid={"software": [None, soft]}, policies=["static"], cache=None)
    each = [hosim.run(path, software=name, policies=["static"])["static"].summary["step_ns"] for name in (None, soft)]
    assert [row["step_ns"] for row in swept.rows] == each
    assert each[0] < each[1]
    swept = hosim.sweep(
        path,
        set={"software": soft},
        grid={"software.copies.default.share": [0.25, 1.0]},
        policies=["static"],
        cache=None,
    )
    assert [row["step_ns"] for row in swept.rows] == each[::-1]


def test_what_a_row_sets_is_driven_too(tmp_path):
    scenario = chain.SCENARIO.replace("  - resident", "  - {policy: resident, set: {links.h2d.bandwidth: 8 GB/s}}")
    scenario = scenario.replace("assumed:\n", "assumed:\n  links.h2d.bandwidth: for tests\n")
    results = driven(tmp_path, "copies: {in: {mode: staged, share: 0.25}}\n", scenario=scenario)
    rates = [row.hardware.links["h2d"].bandwidth_bytes_per_s for row in results.values()]
    assert rates == [2_000_000_000, 1_000_000_000, 1_000_000_000]


def shares():
    return some.floats(0.01, 1, allow_nan=False).map(lambda share: round(share, 3))


def times():
    return some.integers(0, 10**6).map("{} ns".format)


COPIES = some.fixed_dictionaries(
    {"mode": some.sampled_from(["pinned", "pageable", "bounced", "staged", "unified"]), "share": shares()},
    optional={"latency": times(), "rate": some.integers(1, 10**11).map("{} B/s".format)},
)
KERNELS = some.fixed_dictionaries(
    {},
    optional={
        "arithmetic": some.dictionaries(some.sampled_from(["matmul", "attention", "vector", "default"]), shares()),
        "bandwidth": shares(), "launch": times(), "fill": times(),
    },
)  # fmt: skip
PROFILES = some.fixed_dictionaries(
    {},
    optional={
        "copies": some.dictionaries(some.sampled_from(["default", "in", "out"]), COPIES),
        "host": some.dictionaries(some.sampled_from(["op", "copy", "layer", "step"]), times()),
        "kernels": some.dictionaries(some.sampled_from(["train", "default"]), KERNELS),
        "cores": some.builds(dict, KERNELS, sockets=some.floats(0, 1)),
        "memory": some.fixed_dictionaries(
            {},
            optional={"taken": shares(), "context": some.integers(0, 10**8).map("{} B".format), "lost": some.just(0.3)},
        ),
    },
)
TRAIN = catalog.resolve(catalog.scenario_of("dgx_h100", "tiny_train"), {"workload.on.optimizer": "host"})


@given(profile=PROFILES)
def test_no_software_is_faster_than_the_best_case(profile):
    software = Software.model_validate({"name": "drawn", **profile})
    machine = drive(TRAIN.hardware, software, TRAIN.workload, lambda *keys: "drawn")
    best, graph = TRAIN.hardware, build_job(TRAIN.workload).graphs[0]
    for size in (1, 10**6, 10**9):
        assert all(transfer_ns(size, link) >= transfer_ns(size, best.links[way]) for way, link in machine.links.items())
    assert all(ns >= least for ns, least in zip(durations_ns(graph, machine), durations_ns(graph, best), strict=True))
    for kind in ("fixed", "reactive"):
        prices = zip(getattr(machine.host, kind).prices_ns, getattr(best.host, kind).prices_ns, strict=True)
        assert all(ns >= least for ns, least in prices)
    assert all(tier.usable_bytes <= best.tiers[name].usable_bytes for name, tier in machine.tiers.items())
    assert drive(machine, software, TRAIN.workload, lambda *keys: "drawn").host == machine.host  # it adds nothing twice


@pytest.mark.parametrize("name", catalog.names("software"))
def test_a_shipped_profile_drives_a_shipped_machine_and_cites_all_it_says(name):
    document = catalog.load(name, "software", is_strict=True).document
    assert document.origins()["mine"] == 0
    driven = {"autoawq": ("llama31_8b_prefill",), "tensorrt_llm": ("llama31_8b_decode", "llama31_8b_hits")}
    machine = "rtx4090_desktop" if name == "autoawq" else "dgx_h100"  # it is for few machines
    for workload in driven.get(name, ("tiny_train", "llama31_8b_decode", "llama31_8b_hits")):
        loaded = catalog.resolve(catalog.scenario_of(machine, workload), {"software": name})
        assert loaded.hardware != loaded.stated
        assert loaded.hardware.sources.items() != loaded.stated.sources.items()


def test_kept_rows_are_those_of_the_software_as_it_is_now(tmp_path):
    path, soft, steps_ns = chain.write(tmp_path), tmp_path / "soft.yaml", []
    for share in (0.25, 0.5):
        soft.write_text(f"{PROFILE}copies: {{default: {{mode: bounced, share: {share}}}}}\n", encoding="utf-8")
        swept = hosim.sweep(path, grid={"software": [str(soft)]}, policies=["static"], cache=tmp_path / "kept")
        steps_ns.append(swept.rows[0]["step_ns"])
    assert steps_ns[0] > steps_ns[1]

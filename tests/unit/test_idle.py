"""What was set, or is stated as one's own, and changes nothing in a run, is named in one line with the reason."""

from __future__ import annotations

import documents
import pytest

import simulator
from simulator import catalog
from simulator.run.case import prepare
from simulator.run.effects import idle_line

STORY = documents.STORY.replace("[resident]", "[resident, reactive]")


@pytest.fixture
def line(tmp_path, monkeypatch):
    """Name what changes nothing in a step of training on one rank, with changes."""
    monkeypatch.chdir(tmp_path)

    def named(changes, story=STORY, box=documents.BOX, job=documents.JOB):
        documents.lay(tmp_path, job, story)
        (tmp_path / "box.yaml").write_text(box)
        return idle_line(prepare(catalog.resolve("story.yaml", changes), with_bounds=False))

    return named


NOT_DYNAMIC = "no op reads dynamically"
FREE = "no lower tier that it joins states a bandwidth"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tiers.ddr.bandwidth": "1 MB/s"}, ""),
        ({"links.h2d.passes": {"ddr": 3}}, f"links.h2d.passes ({FREE})"),
        ({"links.h2d.passes": {"ddr": 3}, "tiers.ddr.bandwidth": "1 MB/s"}, ""),
        ({"tiers.*.bandwidth": "1 MB/s"}, ""),
        ({"tiers.ddr.energy": "1 pJ/B"}, "tiers.ddr.energy (the energy of a copy is that of its link)"),
        ({"compute.peak.bf16": "1 TFLOP/s"}, ""),
        ({"compute.peak": {"bf16": "1 TFLOP/s", "fp8": "1 TFLOP/s"}}, ""),
        ({"compute.achieved_fraction.default": 0.5}, ""),
        ({"links.d2h.sharing": "fair"}, "links.d2h.sharing (one copy at a time shares with no other)"),
        ({"links.*.channels": 2, "links.d2h.sharing": "fair"}, ""),
        ({"tiers.ddr.scope": "node"}, "tiers.ddr.scope (there is one rank)"),
        ({"allocator.page": "4 kB"}, "allocator.page (each row only counts bytes (allocator: ideal))"),
        ({"scenario.seed": 3}, "seed (nothing is drawn)"),
        ({"scenario.slo.ttft": "1 s"}, "slo.ttft (hosim serve reads it)"),
        ({"scenario.kv_tiers.ddr": "1 GB"}, "kv_tiers.ddr (hosim serve reads it)"),
        ({"host.serving.iteration": "1 ms"}, "host.serving.iteration (hosim serve reads it)"),
        ({"scenario.switches.collectives": "compute_stream"}, "switches.collectives (ranks never meet)"),
        ({"scenario.policies.0.alone": True}, "policies.0.alone (there is one rank)"),
        ({"scenario.policies.0.order": "mpmd"}, "policies.0.order (each rank runs all ops on one stream)"),
        ({"scenario.policies.1.options": {"dynamic": "on_demand"}}, f"policies.1.options.dynamic ({NOT_DYNAMIC})"),
        (
            {"scenario.policies.1": {"policy": "hybrid", "options": {"evict": "lru"}}},
            f"policies.1.options.evict ({NOT_DYNAMIC})",
        ),
        ({"scenario.policies.1.options": {"evict": "lru"}}, ""),
        ({"software": "vllm", "software.host.iteration": "9 ms"}, "software.host.iteration (hosim serve reads it)"),
        (
            {"software": "eager_pytorch", "software.kernels.prefill.fill": "9 us"},
            "software.kernels.prefill.fill (the run is of another kind)",
        ),
        ({"compute.class_bandwidth.matmul_w4": 0.5}, "compute.class_bandwidth.matmul_w4 (no op is of this class)"),
        ({"compute.class_bandwidth.matmul": 0.5}, ""),
        ({"compute.achieved_fraction.attention_backward": 0.5}, ""),
        ({"host.each_class.dequantize": "9 us"}, "host.each_class.dequantize (no op is of this class)"),
        ({"host.each_class.matmul": "9 us"}, ""),
        ({"software": "eager_pytorch", "software.kernels.train.fill": "9 us"}, ""),
        (
            {"software": "eager_pytorch", "software.memory.communication": "1 MB"},
            "software.memory.communication (there is one rank)",
        ),
        *(
            ({"software": "torch_compile", f"software.{path}": value}, f"software.{path} (no op is of this class)")
            for path, value in (
                ("kernels.train.arithmetic.matmul_w4", 0.5),
                ("kernels.train.class_bandwidth.dequantize", 0.5),
                ("host.class.matmul_w8", "1 us"),
            )
        ),
        ({"software": "torch_compile", "software.kernels.train.arithmetic.matmul": 0.5}, ""),
        ({"software": "ktransformers"}, "software (ktransformers says nothing of such a run)"),
        (
            {"software": "ktransformers", "software.cores.sockets": 0.5},
            "software.cores.sockets (no host has several sockets",
        ),
        ({"workload.parallel.schedule": "gpipe"}, "workload.parallel.schedule (the graph is the same with it)"),
        ({"workload.parallel.schedule": "1f1b", "workload.batch": 2}, ""),
    ],
)
def test_what_changes_nothing_is_named(line, changes, told):
    said = line(changes) or ""
    assert (f"without effect here: {told}" in said) if told else not said


def test_what_an_author_states_is_named_too_and_what_has_an_origin_is_not(line):
    box = documents.BOX.replace("ddr: {capacity: inf}", "ddr: {capacity: inf, energy: 1 pJ/B}")
    assert line({}, box=box) is None  # assumed, a toy
    named = "without effect here: tiers.ddr.energy (the energy of a copy is that of its link)."
    assert line({}, box=box.replace("  tiers: a toy\n", "")) == named
    assert line({}, story=STORY + "seed: 3\n") == "without effect here: seed (nothing is drawn)."


def test_ways_past_endless_room_are_named(line):
    more = "ddr: {capacity: inf}\n  ssd: {capacity: 1 TB}"
    ways = {
        "read": "{source: ssd, target: ddr, bandwidth: 1 GB/s}",
        "write": "{source: ddr, target: ssd, bandwidth: 1 GB/s}",
    }
    links = "\nlinks:" + "".join(f"\n  {name}: {way}" for name, way in ways.items())
    box = documents.BOX.replace("ddr: {capacity: inf}", more).replace("\nlinks:", links)
    why = "ddr before it has unlimited room"
    for path in ("links.read.bandwidth", "links.write.latency"):
        assert (
            line({path: "1 us" if "latency" in path else "1 MB/s"}, box=box) == f"without effect here: {path} ({why})."
        )
    assert line({"tiers.ssd.reserved": "1 GB"}, box=box) == f"without effect here: tiers.ssd.reserved ({why})."
    assert line({"links.read.bandwidth": "1 MB/s", "tiers.ddr.capacity": "1 TB"}, box=box) is None
    assert line({"links.read.bandwidth": "1 MB/s", "homes.optimizer_state": "ssd"}, box=box) is None


def test_a_home_that_nearly_all_of_its_tensors_ignore_is_told(line):
    decode = documents.decoder(1, "kind: dense, width: 128", batch=1, sequence=16)
    assert line({}, job=decode) is None
    told = "homes.activation holds for 4 B only: 2.88 kB of its tensors are new in each step and gone before it ends."
    for homes, said in (({"activation": "ddr"}, [told]), ({"activation": "free"}, []), ({"kv_cache": "ddr"}, [])):
        changes = {f"homes.{kind}": tier for kind, tier in homes.items()}
        sentences = simulator.run("story.yaml", policies=["resident"], set=changes).sentences
        assert [sentence for sentence in sentences if "homes." in sentence] == said


def test_the_run_names_it_and_costs_of_rows_that_are_not_there(line, tmp_path):
    line({})
    changes = {"host.reactive.sync": "3 us", "host.fixed.step": "1 us"}
    for policy, told in (("resident", "host.reactive.sync (no row decides"), ("reactive", "host.fixed.step (each row")):
        said = simulator.run("story.yaml", policies=[policy], set=changes).sentences
        assert any(sentence.startswith(f"without effect here: {told}") for sentence in said)
    said = simulator.run("story.yaml", set=changes).sentences
    assert not any("without effect here" in sentence for sentence in said)

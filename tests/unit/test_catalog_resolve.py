"""A scenario with all that it names, and with what is set from outside."""

# ruff: noqa: E501 - messages stand here as they are printed

import hashlib
from pathlib import Path

import pytest
from documents import BOX, JOB, STORY, lay, refusal
from stories import machine

from simulator import catalog
from simulator.catalog.settings import amounts, scaled
from simulator.catalog.text import compose
from simulator.hardware import Hardware
from simulator.scenario import Scenario


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay(tmp_path)


def test_resolving_applies_what_is_set_and_keeps_its_origin(folder):
    loaded = catalog.resolve("story.yaml")
    rates = [link.bandwidth_bytes_per_s for link in loaded.hardware.links.values()]
    assert rates == [40_000_000_000] * 2
    assert loaded.hardware.origin_of("links.d2h.bandwidth") == "cited"
    assert loaded.hardware.sources["links.h2d.bandwidth"][0].text == "a paper"
    assert loaded.hardware.origin_of("tiers.hbm.capacity") == "assumed"
    assert loaded.sha256 == {
        name: hashlib.sha256(text.encode()).hexdigest()
        for name, text in (("scenario", STORY), ("hardware", BOX), ("workload", JOB))
    }


def test_changes_from_outside_win_and_need_no_origin(folder):
    loaded = catalog.resolve("story.yaml", dict([catalog.setting("links.d2h.bandwidth = 70 GB/s")]))
    rates = {name: link.bandwidth_bytes_per_s for name, link in loaded.hardware.links.items()}
    assert rates == {"d2h": 70_000_000_000, "h2d": 40_000_000_000}
    assert loaded.hardware.assumed["links.d2h.bandwidth"] == "changed for this run"
    assert loaded.scenario.set_ == {"links.*.bandwidth": "40 GB/s", "links.d2h.bandwidth": "70 GB/s"}
    assert list(loaded.scenario.field_errors()) == []
    replaced = catalog.resolve("story.yaml", {"links.*.bandwidth": "1 GB/s"}).scenario
    assert (replaced.set_, replaced.sources) == ({"links.*.bandwidth": "1 GB/s"}, {})


def test_a_change_may_name_fields_by_a_pattern(folder):
    loaded = catalog.resolve("story.yaml", {"links.h*.bandwidth": "70 GB/s", "[ct]*.h?m.capacity": "1 GB"})
    rates = {name: link.bandwidth_bytes_per_s for name, link in loaded.hardware.links.items()}
    assert rates == {"d2h": 40_000_000_000, "h2d": 70_000_000_000}
    assert loaded.hardware.tiers["hbm"].capacity_bytes == 1_000_000_000
    said = refusal(catalog.resolve, "story.yaml", {"links.x*.bandwidth": "70 GB/s"})
    assert "found 'links.x*.bandwidth'; after 'links' use one of d2h, h2d" in said


def test_a_whole_part_that_is_set_takes_its_origin_along(folder):
    changes = {"compute.achieved_fraction": {"matmul": 0.5, "default": 0.1}}
    Path("story.yaml").write_text(STORY.replace("hardware: box.yaml", "hardware: ascend_910c_die"))
    hardware = catalog.resolve("story.yaml", changes).hardware
    assert hardware.compute.achieved_fraction == {"matmul": 0.5, "default": 0.1}
    assert hardware.origin_of("compute.achieved_fraction.matmul") == "assumed"
    assert list(hardware.field_errors()) == []


def test_a_field_left_at_its_default_can_be_set(folder):
    changes = {"links.d2h.latency": "5 us", "host.reactive.sync": "3 us", "compute.achieved_fraction.default": "0.5"}
    hardware = catalog.resolve("story.yaml", changes).hardware
    assert hardware.links["d2h"].latency_ns == 5_000
    assert hardware.host.reactive.sync_ns == 3_000
    assert hardware.compute.achieved_fraction == {"default": 0.5}
    assert hardware.host.queue_depth == Hardware.model_validate(compose(BOX, "box").data).host.queue_depth


def test_a_section_that_is_left_out_can_be_set_and_null_leaves_a_key_out(folder):
    changes = {"optimizer.kind": "muon", "optimizer.states": "bf16", "dtypes.optimizer_bytes_per_parameter": None}
    written = {f"workload.{key}": value for key, value in changes.items()}
    workload = catalog.resolve("tiny_train_910c", written).workload
    assert workload.optimizer.model_dump(exclude_unset=True) == {"kind": "muon", "states": "bf16"}
    assert "optimizer_bytes_per_parameter" not in workload.dtypes.model_fields_set
    assert list(workload.field_errors()) == []
    said = refusal(catalog.resolve, "tiny_train_910c", {"workload.optimizer.knd": "muon"})
    assert "set, workload.optimizer.knd: only known keys stand here" in said
    said = refusal(catalog.resolve, "tiny_train_910c", {"workload.optim*.kind": "muon"})
    assert "after 'optimizer' there is no field" in said
    said = refusal(catalog.resolve, "tiny_train_910c", {"workload.lora.targets": ["attn.*"]})
    assert "the key 'rank' is needed here" in said


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "link.d2h.bandwidth",
            "1 GB/s",
            (
                "set, link.d2h.bandwidth: a change names a field of the hardware, found 'link.d2h.bandwidth'; use one of "
                "compute_tier, compute, host, host_compute, tiers, links, buses, copy_queues, topology, fabrics, ranks, on_chip, allocator (did you mean 'links'?)"
            ),
        ),
        (
            "links.*.bandwith",
            "1 GB/s",
            (
                "set, links.*.bandwith: a change names a field of the hardware, found 'links.*.bandwith'; after 'links.d2h' "
                "use one of source, target, bandwidth, latency, channels, sharing, efficiency, via, chunk, passes, "
                "blocking, loads, energy "
                "(did you mean 'bandwidth'?)"
            ),
        ),
        (
            "links.d2h.bandwidth.rate",
            "1 GB/s",
            (
                "set, links.d2h.bandwidth.rate: a change names a field of the hardware, found 'links.d2h.bandwidth.rate'; "
                "after 'links.d2h.bandwidth' there is no field"
            ),
        ),
        (
            "links.d2h.bandwidth",
            "40",
            "set, links.d2h.bandwidth: a rate is a number and a unit, such as '33.6 GB/s', found 40; write it as '33.6 GB/s'",
        ),
        (
            "links.d2h.target",
            "dram",
            "set, links.d2h.target: a link joins two tiers, found 'dram'; use one of hbm, ddr",
        ),
        (
            "name",
            "other",
            (
                "set, name: a change names a field of the hardware, found 'name'; use one of "
                "compute_tier, compute, host, host_compute, tiers, links, buses, copy_queues, topology, fabrics, ranks, on_chip, allocator"
            ),
        ),
    ],
)
def test_a_wrong_change_is_refused(folder, key, value, message):
    assert refusal(catalog.resolve, "story.yaml", {key: value}) == message


def test_a_wrong_change_within_another_is_named_itself(folder):
    whole = {"source": "hbm", "target": "ddr", "bandwidth": "1 GB/s"}
    told = refusal(catalog.resolve, "story.yaml", {"links.d2h": whole, "links.d2h.bandwidth": "-1 GB/s"})
    assert told.startswith("set, links.d2h.bandwidth: a rate is at least 0 B/s")


def test_what_has_no_limit_is_no_amount_and_stays_without_one():
    """HBM of 100 B, DDR without a limit."""
    box = machine()
    assert scaled(box, {"tiers.*.capacity": 1.5}) == {"tiers.hbm.capacity": "150 B", "tiers.ddr.capacity": "inf"}
    assert [path for path in amounts(box) if path.startswith("tiers")] == ["tiers.hbm.capacity", "tiers.hbm.bandwidth"]


def test_a_change_may_be_a_list_or_a_part():
    assert catalog.setting('a.b=[embed/*, "L*/norm*", 3]') == ("a.b", ["embed/*", "L*/norm*", 3])
    assert catalog.setting("lora={rank: 4}") == ("lora", {"rank": 4})
    assert "well-formed YAML" in refusal(catalog.setting, "a=[1, 2")


@pytest.mark.parametrize("text", ["links.d2h.bandwidth", "=1", "links.d2h.bandwidth="])
def test_a_change_is_a_key_and_a_value(text):
    message = f"set: a change is a key, '=' and a value, found {text!r}; write it as 'links.d2h.bandwidth=40 GB/s'"
    assert refusal(catalog.setting, text) == message


@pytest.mark.parametrize(
    ("change", "by", "message"),
    [
        (
            "40 GB/s",
            "40 GBps",
            (
                "story.yaml:6, set.links.*.bandwidth: a rate is needed, such as '33.6 GB/s', found '40 GBps'; use one of "
                "B/s, kB/s, MB/s, GB/s, TB/s, PB/s, KiB/s, MiB/s, GiB/s, TiB/s (did you mean 'GB/s'?)"
            ),
        ),
        (
            "weight: hbm",
            "weight: hmb",
            (
                "story.yaml:7, homes.weight: homes names tiers of the machine, found 'hmb'; use one of hbm, ddr, free "
                "(did you mean 'hbm'?)"
            ),
        ),
        (
            "homes:",
            "budget: 65 GB\nhomes:",
            (
                "story.yaml:7, budget: a budget is at most the capacity of hbm (64.0 GB), found 65.0 GB; "
                "lower it, or set tiers.hbm.capacity"
            ),
        ),
        (
            "[resident]",
            "[resident, best.jsonl]",
            (
                "story.yaml:8, policies.1: an input is a file, found no such file: 'best.jsonl'; correct the path; "
                "hosim downloads nothing"
            ),
        ),
        (
            "[resident]",
            "[]",
            "story.yaml:8, policies: tuple should have at least 1 item after validation, not 0, found []; correct it",
        ),
        (
            "[resident]",
            "[3]",
            "story.yaml:8, policies.0: this is a mapping of keys to values, found 3; correct it",
        ),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_line(folder, change, by, message):
    assert change in STORY
    Path("story.yaml").write_text(STORY.replace(change, by))
    assert refusal(catalog.resolve, "story.yaml") == message


def test_figures_that_a_scenario_sets_are_its_own_unless_origins_are_asked_for(folder):
    Path("story.yaml").write_text(STORY.replace("homes:", "  links.d2h.latency: 1 us\nhomes:"))
    assert catalog.resolve("story.yaml").scenario.origins()["mine"] == 1
    assert refusal(catalog.load, "story.yaml", "scenario", is_strict=True) == (
        "story.yaml:7, set.links.d2h.latency: each figure has an origin under sources, assumed or fitted, found none; "
        "cite 'links.d2h.latency' in sources, or say in assumed why it was chosen"
    )


@pytest.mark.parametrize(
    ("key", "lines"),
    [
        ("budget", "budget: 1 kB"),
        ("kv_tiers.ddr", "kv_tiers: {ddr: 1 GB}"),
        ("draws.skew", "draws: {distribution: zipf, skew: 1.2}"),
        ("draws.stickiness", "draws: {stickiness: 0.5}"),
    ],
)
def test_room_and_draws_are_figures_that_need_an_origin(folder, key, lines):
    text = STORY.replace("homes:", f"{lines}\nhomes:")
    Path("story.yaml").write_text(text)
    assert catalog.load("story.yaml", "scenario").document.origins()["mine"] == 1
    said = refusal(catalog.load, "story.yaml", "scenario", is_strict=True)
    assert f", {key}: each figure has an origin under sources, assumed or fitted, found none; cite {key!r} in" in said
    Path("story.yaml").write_text(f"{text}\nassumed: {{{key}: a test}}\n")
    assert catalog.load("story.yaml", "scenario", is_strict=True).document.origins()["assumed"] == 1


def test_what_is_asked_and_what_policies_are_told_are_no_figures(folder):
    more = "frontier: {of: workload.steps, at_most: 4}\nseed: 7\nslo: {ttft: 1 s}\n"
    options = "[{policy: reactive, options: {look_ahead: 3}}]"
    Path("story.yaml").write_text(STORY.replace("[resident]", options).replace("homes:", f"{more}homes:"))
    assert catalog.load("story.yaml", "scenario", is_strict=True).document.origins()["mine"] == 0


def test_files_that_documents_name_are_inputs(folder):
    Path("step.jsonl").write_text("{}\n")
    Path("best.jsonl").write_text("{}\n")
    Path("job.yaml").write_text("schema: hosim/workload/1\nname: job\ngraph: step.jsonl\n")
    Path("story.yaml").write_text(STORY.replace("[resident]", "[best.jsonl]"))
    loaded = catalog.resolve("story.yaml")
    assert loaded.paths["graph"].read_text() == loaded.paths["plan best"].read_text() == "{}\n"
    assert loaded.sha256["graph"] == loaded.sha256["plan best"] == hashlib.sha256(b"{}\n").hexdigest()


def test_a_scenario_may_come_from_python(folder):
    about = {"hardware": "box.yaml", "workload": "job.yaml", "policies": ("static",)}
    loaded = catalog.resolve(Scenario(name="mine", set={"links.*.latency": "1 us"}, **about))
    assert loaded.hardware.links["h2d"].latency_ns == 1_000
    assert (loaded.workload, set(loaded.sha256)) == (catalog.read_workload("job.yaml"), {"hardware", "workload"})


def test_a_place_in_a_scenario_without_a_file_names_the_scenario(folder):
    story = Scenario(name="mine", hardware="box.yaml", workload="job.yaml", policies=("static",))
    assert catalog.resolve(story).place("policies", "0") == "scenario 'mine', policies.0"
    assert catalog.resolve("story.yaml").place("policies", "0") == "story.yaml:8, policies.0"
    wrong = story.model_copy(update={"homes": {"weight": "hmb"}})
    assert refusal(catalog.resolve, wrong).startswith("scenario 'mine', homes.weight: homes names")


def test_what_was_run_can_be_run_again(folder, tmp_path):
    Path("step.jsonl").write_text("{}\n")
    Path("job.yaml").write_text("schema: hosim/workload/1\nname: job\ngraph: step.jsonl\n")
    first = catalog.resolve("story.yaml", {"links.d2h.latency": "5 us"})
    out = tmp_path / "out"
    out.mkdir()
    for name, text in first.documents().items():
        (out / name).write_text(text)
    again = catalog.resolve(out / "scenario.yaml")
    assert again.hardware == first.hardware
    assert again.sha256["graph"] == first.sha256["graph"]
    assert again.scenario.set_ == first.scenario.set_
    assert again.documents() == first.documents()

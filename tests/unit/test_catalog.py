"""The catalogue: what ships, and how a document is found."""

import json
from copy import deepcopy
from functools import cache
from pathlib import Path

import jsonschema
import pytest
from documents import STORY, lay, refusal
from examples import some
from stated import SCENARIOS

from simulator import catalog
from simulator.catalog.text import compose
from simulator.hardware import Hardware
from simulator.policies import POLICIES
from simulator.scenario import Scenario
from simulator.workload import Workload


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lay(tmp_path)


@cache
def editor(kind):
    """What an editor does with the schema of a kind of document."""
    schema = catalog.schema(kind)
    judge = jsonschema.validators.validator_for(schema)
    judge.check_schema(schema)
    return judge(schema)


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_shipped_documents_are_read_and_have_titles(kind):
    read = {name: catalog.load(name, kind).document for name in catalog.names(kind)}
    assert [name for name, document in read.items() if document.name != name or not document.title] == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [case for kind in catalog.KINDS for case in some([(kind, name) for name in catalog.names(kind)], 8)],
)
def test_shipped_documents_write_themselves_and_editors_accept_them(kind, name):
    entry = catalog.load(name, kind)
    editor(kind).validate(entry.tree.data)
    assert type(entry.document).model_validate(compose(catalog.dump(entry.document), "dump").data) == entry.document


def test_shipped_scenarios_resolve_and_their_rows_name_policies_with_their_options(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in SCENARIOS:
        loaded = catalog.resolve(name)
        assert {"scenario", "hardware", "workload"} <= set(loaded.sha256), name
        for document in (loaded.hardware, loaded.workload, loaded.scenario):
            assert list(document.field_errors()) == [], name
        for choice in loaded.scenario.policies:
            POLICIES[choice.policy].read_options(choice.options)


def test_what_ships():
    assert set(catalog.names("hardware")) >= {"ascend_910c_die", "h100_sxm"}
    assert set(catalog.names("workload")) >= {"llama3_8b_train", "tiny_train"}
    assert set(SCENARIOS) >= {"llama3_8b_train_910c", "llama3_8b_offload_bandwidths", "tiny_train_910c"}


def test_the_910c_lists_the_three_published_host_links():
    die = catalog.read_hardware("ascend_910c_die")
    for link in ("d2h", "h2d"):
        assert die.links[link].bandwidth_bytes_per_s == 33_600_000_000
        printed = [citation.value for citation in die.sources[f"links.{link}.bandwidth"]]
        assert [str(value).split(" GB/s")[0] for value in printed] == ["33.6", "about 110", "up to 119"]
    assert [*die.fitted] == ["allocator.compaction.per_page"], "no link, and no rate"


def test_one_fit_of_a_parameter_serves_all_claims():
    fits = {}
    for scenario in SCENARIOS.values():
        for field, fit in scenario.fitted.items():
            fits.setdefault(fit.parameter, set()).add((field.rpartition(".")[0], str(scenario.set_[field])))
    assert fits == {
        "rate of arithmetic": {("compute.achieved_fraction", "0.611")},
        "rate of arithmetic with fused SwiGLU": {("compute.achieved_fraction", "0.602")},
        "time of a compaction": {("allocator", "{'per_page': '18 us'}")},
    }


def test_a_path_is_relative_to_what_names_it(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    loaded = catalog.resolve(folder / "story.yaml")
    assert loaded.hardware.name == "box"
    assert loaded.paths["hardware"] == folder / "box.yaml"
    assert loaded.workload_dir == loaded.scenario_dir == folder


def test_any_kind_is_read_by_its_first_line(folder):
    kinds = [type(catalog.load(f"{name}.yaml").document) for name in ("box", "job", "story")]
    assert kinds == [Hardware, Workload, Scenario]


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        (
            "asend_910c_die",
            (
                "hardware: a hardware document has a name in the catalogue, or a path that ends in .yaml, found "
                "'asend_910c_die'; did you mean 'ascend_910c_die'?"
            ),
        ),
        ("nope.yaml", "nope.yaml: a hardware document is a file, found no such file; correct the path"),
        (
            "old/h100_sxm.yaml",
            (
                "old/h100_sxm.yaml: a hardware document is a file, found no such file; "
                "write 'h100_sxm' for the one in the catalogue"
            ),
        ),
        ("folder.yaml", "folder.yaml: a hardware document is a file, found a folder; correct the path"),
    ],
)
def test_what_is_not_there(folder, ref, message):
    (folder / "folder.yaml").mkdir()
    assert refusal(catalog.load, ref, "hardware") == message


def test_a_scenario_that_names_nothing_known_points_at_its_line(folder):
    text = STORY.replace("box.yaml", "bocks.yaml")
    Path("story.yaml").write_text(text)
    message = (
        "story.yaml:3, hardware: a hardware document is a file, found no such file: 'bocks.yaml'; correct the path"
    )
    assert refusal(catalog.resolve, "story.yaml") == message


def test_figures_are_counted_by_origin():
    die = catalog.read_hardware("ascend_910c_die").origins()
    assert (sum(die.values()), die["fitted"]) == (31, 1)
    assert catalog.read_scenario("llama3_8b_train_910c").origins() == {"cited": 0, "assumed": 0, "fitted": 2, "mine": 0}


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_a_schema_is_json_that_names_every_key(kind):
    made = json.loads(json.dumps(catalog.schema(kind)))
    assert "schema" in made["required"]
    assert set(made["properties"]) >= {"schema", "name", "sources", "assumed", "fitted"}
    assert made["additionalProperties"] is False


def test_editors_refuse_what_hosim_refuses():
    data = deepcopy(catalog.load("ascend_910c_die", "hardware").tree.data)
    data["links"]["d2h"]["bandwidth"] = 40
    with pytest.raises(jsonschema.ValidationError, match="40 is not of type 'string'"):
        jsonschema.validate(data, catalog.schema("hardware"))


def test_an_unknown_kind_of_schema():
    message = "schema: a kind of document is known, found 'hardwear'; use one of hardware, software, workload, job, "
    assert refusal(catalog.schema, "hardwear") == message + "scenario, study (did you mean 'hardware'?)"

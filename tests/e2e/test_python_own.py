"""From Python: a workload on a machine without a scenario, and changes to both."""

import pytest

import simulator as hosim
from simulator.errors import ConfigError

ON = {"hardware": "ascend_910c_die", "workload": "tiny_train"}


def test_a_workload_runs_on_a_machine():
    assert list(hosim.run(**ON)) == ["resident", "reactive", "static"]
    (row,) = hosim.run(**ON, policies="resident", set={"workload.batch": 2, "tiers.hbm.capacity": "90 GB"}).values()
    assert row.case.loaded.workload.batch == 2
    assert row.case.hardware.tiers["hbm"].capacity_bytes == 90 * 10**9


@pytest.mark.parametrize("given", [{}, {"hardware": "h100_sxm"}, {**ON, "scenario": "tiny_train_910c"}])
def test_a_scenario_is_named_or_both(given):
    with pytest.raises(ConfigError, match="say either scenario, or hardware and workload"):
        hosim.run(**given)


def test_a_foreign_file_names_its_import(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"schema":"hosim-graph/1"}\n', encoding="utf-8")
    for given in ({"scenario": file}, {"hardware": "h100_sxm", "workload": file}):
        with pytest.raises(ConfigError, match="run `hosim import graph"):
            hosim.run(**given)

"""A row that sets the machine for itself runs as the whole scenario would on that machine."""

import json

import chain
import pytest

import simulator as hosim_api
from simulator import catalog

pytestmark = pytest.mark.usefixtures("pictures_are_blank")

RATES = "assumed:\n  budget: room for four activations\n  links.*.bandwidth: for a test\n"


def write(folder, rows, more=""):
    head, _ = chain.SCENARIO.split("policies:\n")
    return chain.write(folder, scenario=f"{head}policies:\n{rows}{more}{RATES}")


@pytest.fixture
def path(tmp_path):
    rows = "  - static\n  - {policy: static, label: fast, set: {links.*.bandwidth: 8 GB/s}}\n"
    rows += "  - {policy: reactive, label: fast runtime, set: {links.*.bandwidth: 8 GB/s}}\n"
    return write(tmp_path, rows)


def test_it_takes_what_the_scenario_takes_on_that_machine(path):
    found = hosim_api.run(path)
    other = hosim_api.run(path, set={"links.*.bandwidth": "8 GB/s"})
    steps = found.summary["step_ns"]
    assert steps["fast"] == other.summary["step_ns"]["static"] < steps["static"]
    assert found.summary["bound_ns"]["fast"] == other.summary["bound_ns"]["static"]
    assert found["fast"].hardware.links["d2h"].bandwidth_bytes_per_s == 8_000_000_000
    assert found["static"].hardware.links["d2h"].bandwidth_bytes_per_s == 4_000_000_000


def test_a_row_keeps_what_it_sets_and_a_scale_multiplies_it(path):
    loaded = catalog.resolve(path, {"links.*.bandwidth": "2 GB/s"})
    choice = loaded.scenario.policies[1]
    assert loaded.for_row(choice).hardware.links["d2h"].bandwidth_bytes_per_s == 8_000_000_000
    axis = catalog.Axis("links", ("links.*.bandwidth",), "a test", "x")
    halved = catalog.at(catalog.resolve(path), {axis: 0.5})
    assert halved.hardware.links["d2h"].bandwidth_bytes_per_s == 2_000_000_000
    assert halved.for_row(choice).hardware.links["h2d"].bandwidth_bytes_per_s == 4_000_000_000


def test_what_is_written_gives_the_same_rows_again(hosim, path, tmp_path):
    assert hosim("run", path, "--out", tmp_path / "one").code == 0
    written = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert json.loads(hosim("run", tmp_path / "one" / "scenario.yaml", "--json").out)["rows"] == written["rows"]


def test_a_plan_is_made_for_the_machine_of_its_row(hosim, path):
    steps = hosim_api.run(path).summary["step_ns"]
    assert hosim("plan", path, "--policy", "fast").out.startswith(f"fast on chain: {steps['fast'] / 1e6:.2f} ms a step")


def test_rows_that_set_the_machine_are_planned_once_for_it(path):
    asked = {"policies": ["fast"], "plans": "once", "cache": False}
    (nominal, halved) = hosim_api.sweep(path, {"links.*.bandwidth": ["1x", "0.5x"]}, **asked).rows
    assert nominal["step_ns"] == hosim_api.run(path).summary["step_ns"]["fast"] < halved["step_ns"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("links.*.bandwith: 8 GB/s", "a change names a field of the hardware, found 'links.*.bandwith'"),
        ("links.*.bandwidth: 8 GBps", "a rate is needed, such as '33.6 GB/s', found '8 GBps'"),
        ("tiers.hbm.capacity: 1 MB", "a budget is at most the capacity of hbm (1.00 MB), found 4.30 MB"),
    ],
)
def test_a_machine_that_cannot_be(hosim, tmp_path, row, message):
    key = row.split(":")[0]
    text = f"  - {{policy: static, set: {{{row}}}}}\n"
    path = write(tmp_path, text)
    document = path.read_text().replace("  links.*.bandwidth: for a test", f"  {key}: for a test")
    path.write_text(document)
    done = hosim("run", path)
    assert done.code == 1
    assert message in done.err
    assert "scenario.yaml:" in done.err


def test_what_a_row_sets_has_an_origin(hosim, tmp_path):
    path = write(tmp_path, "  - {policy: static, set: {links.*.bandwidth: 8 GB/s}}\n")
    path.write_text(path.read_text().replace("  links.*.bandwidth: for a test\n", ""))
    assert hosim("check", path).out.endswith(", 1 figure without a source: ok\n")
    done = hosim("check", "--strict", path)
    assert done.code == 1
    assert "policies.0.set.links.*.bandwidth: each figure has an origin under sources, assumed or fitted" in done.err

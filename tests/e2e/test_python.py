"""The Python door: the same results as tables and figures."""

import math
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import chain
import pandas as pd
import pytest

import simulator as hosim
from simulator.bounds import Bound
from simulator.errors import ConfigError
from simulator.policies.baselines import Resident, resident
from simulator.run.case import Case


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One run of the chain."""
    return hosim.run(chain.write(tmp_path_factory.mktemp("inputs")))


def test_every_public_name_is_there():
    for name in hosim.__all__:
        assert getattr(hosim, name) is not None
        assert name in dir(hosim)
    with pytest.raises(AttributeError, match="nothing"):
        hosim.nothing  # noqa: B018


def test_type_checkers_see_every_public_name():
    stub = Path(hosim.__file__).with_suffix(".pyi").read_text()
    assert sorted(re.findall(r"(?: as |\n)(\w+)(?:,?\n| = )", stub)) == hosim.__all__


def test_import_loads_nothing_heavy():
    code = "import sys, simulator, simulator.cli; print([m for m in ('numpy','pandas','pydantic','yaml','simpy',"
    code += "'matplotlib','rich','importlib.metadata') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_results_are_a_mapping_of_rows(results):
    assert list(results) == ["resident", "reactive", "static"]
    assert results["static"].status == "ok"
    assert results["resident"].shortfall.short_bytes == 1_900_000
    assert repr(results) == "<Results of chain: 'resident': infeasible, 'reactive': ok, 'static': ok>"


def test_tables_are_tidy_pandas(results):
    assert results.summary.loc["static", "step_ns"] == 1_500_000
    static = results["static"]
    for table in (static.spans, static.waits, static.memory):
        assert isinstance(table, pd.DataFrame)
        assert len(table)
    waits = static.waits[static.waits["step"] == 1]
    assert (waits["end_ns"] - waits["start_ns"]).sum() == results.summary.loc["static", "stall_ns"]


def test_tables_of_a_row_that_did_not_run_say_why(results):
    with pytest.raises(hosim.CapacityError, match=" B short"):
        _ = results["resident"].spans
    with pytest.raises(hosim.CapacityError, match=" B short"):
        results["resident"].timeline()


@pytest.mark.parametrize("draw", ["timeline", "comparison"])
def test_pictures_are_axes_of_matplotlib_that_show_themselves(draw, results):
    from matplotlib.axes import Axes

    ax = results["static"].timeline() if draw == "timeline" else results.comparison()
    assert isinstance(ax, Axes)
    assert ax is ax.figure.axes[0]
    assert ax._repr_png_().startswith(b"\x89PNG")


def test_pictures_are_drawn_into_axes_that_one_has(results):
    """Of one's own figure, also of a part of it: what has no axes is left out, and what is there is the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8))
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2)
    lanes, steps, hbm = left.subplots(), *right.subplots(1, 2)
    assert results["static"].timeline(lanes) is lanes
    assert results.comparison([steps, hbm]) is steps
    whole = results["static"].timeline()
    for drawn, alone in ((lanes, whole), (steps, results.comparison()), (hbm, results.comparison().figure.axes[1])):
        assert len(drawn.patches) == len(alone.patches) > 0
        assert drawn.get_xlabel() == ("time [ms]" if drawn is lanes else alone.get_xlabel())
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["compute", "d2h", "h2d"]
    said, every = ({text.get_text() for text in key.get_texts()} for key in (lanes.legend_, whole.figure.legends[0]))
    assert said < every, "no kinds of tensors that only a memory has"
    assert figure.axes == [lanes, steps, hbm]
    figure.canvas.draw()


def test_a_window_of_the_timeline(results):
    figure = results["static"].timeline(window_ns=(0, 600_000)).figure
    assert figure.axes[0].get_xlim() == (0, 600)


@pytest.mark.usefixtures("pictures_are_blank")
def test_a_policy_of_ones_own(tmp_path):
    def mine(problem: hosim.Problem) -> hosim.Plan:
        return resident(problem, Resident())

    path = chain.write(tmp_path, scenario=chain.SCENARIO.replace("budget: 4.3 MB\n", "").replace("budget:", "compute:"))
    path.write_text(path.read_text().split("assumed:")[0])
    results = hosim.run(path, policies={"mine": mine})
    assert list(results) == ["resident", "reactive", "static", "mine"]
    assert results["mine"].summary["step_ns"] == results["resident"].summary["step_ns"] == 1_300_000
    results.write(tmp_path / "out")
    again = hosim.run(tmp_path / "out" / "scenario.yaml")
    assert again["mine"].summary["step_ns"] == 1_300_000


def test_progress_is_told(tmp_path):
    told = []
    hosim.run(chain.write(tmp_path), policies=["static"], progress=lambda *news: told.append(news))
    assert told[0] == ("static", 0, 0)


def test_a_policy_that_returns_nothing_is_told_so(scenario):
    with pytest.raises(ConfigError, match="policy 'mine': a policy returns a Plan, found None"):
        hosim.run(scenario, policies={"mine": lambda problem: None})


def test_a_policy_has_a_name_that_a_row_can_have(scenario):
    for name in ("=mine", "mi\nne", "m" * 81):
        with pytest.raises(ConfigError, match="a label is at most 80 characters on one line"):
            hosim.run(scenario, policies={name: lambda problem: None})


def test_times_are_whole_numbers_even_beside_a_row_that_has_none(scenario):
    table = hosim.run(scenario).summary
    assert str(table["step_ns"].dtype) == "Int64"
    assert table["step_ns"].isna().any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"scenario": None},
            "run: a scenario is run, or a workload on a machine, found nothing; say either scenario, or hardware and",
        ),
        ({"scenario": 7}, "found 7"),
        ({"policies": []}, r"policies: policies is a list of at least one name, or functions by name, found \[\]"),
        ({"policies": [None]}, r"policies: .* found \[None\]; name a row"),
        ({"policies": 3}, "policies: .* found 3"),
        ({"policies": {"mine": "static"}}, "policies, mine: a policy by name is a function .* found 'static'"),
        ({"set": ["links"]}, r"set: changes are fields with their values, found \['links'\]"),
    ],
)
def test_wrong_arguments_are_one_error(scenario, arguments, message):
    with pytest.raises(ConfigError, match=message):
        hosim.run(**{"scenario": scenario, **arguments})


def test_the_summary_has_its_main_columns_even_if_nothing_fits():
    found = hosim.run("tiny_train_910c", policies=["resident"]).summary
    assert found["status"].tolist() == ["infeasible"]
    assert found[["step_ns", "makespan_ns", "compute_ns", "stall_ns"]].isna().all(axis=None)


def test_a_step_below_its_bound_is_a_broken_law(scenario, monkeypatch):
    """A bound as long as the step is none; one of 1 ns more is."""
    step_ns = int(hosim.run(scenario, policies=["static"]).summary.loc["static", "step_ns"])
    monkeypatch.setattr(Case, "bound", lambda *_, **__: Bound(step_ns, "invented", {}))
    assert hosim.run(scenario, policies=["static"]).summary.loc["static", "gap_fraction"] == 0
    monkeypatch.setattr(Case, "bound", lambda *_, **__: Bound(step_ns + 1, "invented", {}))
    rows = hosim.run(scenario, policies=["static", "resident"]).summary
    assert rows["status"].tolist() == ["failed", "infeasible"], "one row that is wrong leaves the others as they are"
    assert re.search(r"no step is shorter than its bound, found .*invented", rows.loc["static", "notes"])


@pytest.mark.slow
def test_results_are_written_in_a_checkout_that_is_not_installed(tmp_path):
    """No distribution knows its version."""
    text = f"""
import importlib.metadata
def unknown(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = importlib.metadata.distribution = unknown
import simulator as hosim
hosim.run({str(chain.write(tmp_path))!r}).write({str(tmp_path / "out")!r})
"""
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "report.html").exists()


IN_A_FORK = """
import os, sys
import simulator.catalog
assert not any(name in sys.modules for name in ("simulator.run", "simulator.execute", "hosim"))
for said in {said!r}:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    exec(said)
    break
"""
WHAT = "import simulator.execute as module; assert found is module; print('torch' in sys.modules)"


@pytest.mark.slow
def test_modules_are_imported_like_any_others():
    """In processes of their own, as what others have imported before would help; torch itself is not loaded."""
    said = [
        "import simulator.run.case, simulator as h; h.Results; print(type(h.run).__name__, h.run.__name__)",
        f"import hosim.torch as ht; import hosim; found = ht\n{WHAT}",
        f"from hosim.torch import capture\nimport hosim; found = hosim.torch; assert found.capture is capture\n{WHAT}",
        f"import hosim.torch; import simulator; found = simulator.torch; assert hosim.torch.fake is found.fake\n{WHAT}",
    ]
    code = IN_A_FORK.format(said=said)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (["function run", *["False"] * 3], "")
    assert isinstance(hosim.run, FunctionType)


def test_two_streams_of_a_die_are_not_faster_than_the_die(tmp_path):
    """Two matmuls of 1 TFLOP side by side: alone each reaches 77.4 % of 376 TFLOP/s, together they have all of it."""
    ops = [{"op": f"f{i}", "reads": ["w"], "flops": 10**12, "op_class": "matmul", "stream": i} for i in range(2)]
    tensor = {"tensor": "w", "size_bytes": 1_000_000, "kind": "weight", "persistent": True}
    chain.write_lines(tmp_path / "g.jsonl", [{"schema": "hosim-graph/1", "name": "two"}, tensor, *ops])
    (tmp_path / "w.yaml").write_text("schema: hosim/workload/1\nname: two\ngraph: g.jsonl\n")
    row = hosim.run(hardware="ascend_910c_die", workload=tmp_path / "w.yaml", policies=["resident"])["resident"]
    assert row.summary["compute_ns"] == row.summary["bound_ns"] == math.ceil(2 * 10**12 / 376e3)
    assert row.summary["bounded_by"] == "matrix unit"
    assert 0.85 < row.summary["mfu"] < 1, "the rest is the host's launch of the graph"

"""Exact text: the table, the sentences and the help.

Golden files lie in ``__snapshots__``; ``pytest tests/golden --snapshot-update`` renews them, and the change is
reviewed like code.
"""

import chain
import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

import simulator as hosim
from simulator import catalog
from simulator.cli import main
from simulator.report import tables
from simulator.run.stories import plan


class _Text(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "txt"


@pytest.fixture
def golden(snapshot):
    """A plain text file beside the test."""
    return snapshot.use_extension(_Text)


@pytest.fixture(scope="module", autouse=True)
def ratios():
    """Ratios of measurements that stay as they are when records come."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "measured_ratios", lambda: {"training kernels": {"mine": [1.0, 1.25, 1.5]}})
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One run of the chain, with a plan that blocks itself."""
    folder = tmp_path_factory.mktemp("inputs")
    chain.write_lines(folder / "mine.jsonl", chain.plan_lines())
    scenario = chain.SCENARIO.replace("- static", "- lookahead\n  - offload_saved\n  - static\n  - mine.jsonl")
    return hosim.run(chain.write(folder, scenario=scenario))


def test_table(golden, results):
    assert tables.plain(list(results.values())) + "\n" == golden


def test_table_of_a_wide_line(golden, results):
    assert tables.plain(list(results.values()), width=200) + "\n" == golden


def test_table_of_a_narrow_line(golden, results):
    assert tables.plain(list(results.values()), width=50) + "\n" == golden


def test_sentences(golden, results):
    assert "\n".join(results.sentences) + "\n" == golden


def test_sentences_on_a_tie(golden, tmp_path):
    fast = {"links.*.bandwidth": "40 GB/s"}
    results = hosim.run(chain.write(tmp_path), set=fast, policies=["reactive", "static"])
    assert "\n".join(results.sentences) + "\n" == golden


def test_sentences_when_nothing_fits(golden, tmp_path):
    results = hosim.run(chain.write(tmp_path, scenario=chain.SCENARIO.replace("4.3 MB", "1 MB")))
    assert "\n".join(results.sentences) + "\n" == golden


@pytest.fixture(scope="module")
def diff(tmp_path_factory):
    """What faster links and one row less change."""
    inputs, out = tmp_path_factory.mktemp("inputs"), tmp_path_factory.mktemp("results")
    path = chain.write(inputs)
    (out / "old").write_bytes(hosim.run(path).json())
    new = hosim.run(path, set={"links.*.bandwidth": "8 GB/s"}, policies=["resident", "static"])
    (out / "new").write_bytes(new.json())
    return hosim.diff(out / "old", out / "new", tolerance=0.01)


def test_diff(golden, diff):
    assert f"{diff}\n" == golden


def test_diff_in_markdown(golden, diff):
    assert diff.markdown() == golden


@pytest.mark.parametrize(
    "command",
    [
        "hosim",
        "hosim run",
        "hosim list",
        "hosim check",
        "hosim schema",
        "hosim plan",
        "hosim layout",
        "hosim sweep",
        "hosim diff",
        "hosim validate",
        "hosim crossover",
        "hosim frontier",
    ],
)
def test_help(command, golden, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit, match="0"):
        main([*command.split()[1:], "--help"])
    assert capsys.readouterr().out == golden


def test_explanation_of_a_plan(golden, tmp_path):
    assert plan(chain.write(tmp_path)).text() + "\n" == golden

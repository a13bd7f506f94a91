"""Every notebook runs from top to bottom, from any folder, without a warning; its page shows what it then prints."""

import re
from html import unescape
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


SAID = {
    "01_first_timeline": (4, ["resident does not fit in hbm", "static: ", "makes the step free"]),
    "02_reproduce_hyperoffload": (
        3,
        [
            "60.9 GB resident, 45.6 GB offloaded",
            "25.1 % less (printed: about 26 %), with a step 1.00 times as long",
            "1.74 times as long as the compiled one",
            "selected: 14.9 s, 6.69 s of it management",
            "23 % shorter for whoever also runs cheap ops again",
        ],
    ),
    "03_static_or_reactive": (2, ["static and reactive tie", "a reserve of 5 % costs 0.1 % of the step"]),
    "04_what_bandwidth_do_i_need": (
        1,
        [
            "static meets stall <= 0.1 % with links.*.bandwidth 56 GB/s",
            "bound: no plan that runs each op once meets stall <= 0.1 % with less than links.*.bandwidth 56 GB/s",
            "static with recompute never stalls in 4 of 5 cells, the first at links.*.bandwidth 32.0 GB/s",
            "buses.pcie.bandwidth is 100 GB/s: more changes nothing",
        ],
    ),
    "05_how_much_hbm_for_my_context_length": (
        2,
        [
            "static meets step <= 1.01x with peak.hbm 37.2 GB",
            "static: 8.5 times as long as with enough HBM",
            "static over the pool: 10.0 times as long",
        ],
    ),
    "06_pool_contention_in_a_supernode": (
        1,
        [
            "asked of the pool: 4.90 times what it supplies",
            "of a token of 188 ms, 157 ms wait for copies",
            "a token takes 4.8 times as long as with eight times the supply",
        ],
    ),
}
"""By notebook, how many pictures it draws, and some of what it prints."""


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [*SAID]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_committed_without_outputs(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


SLOW = {*SAID} - {"06_pool_contention_in_a_supernode"}
"""All but the quickest."""


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in SLOW)) for path in NOTEBOOKS],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq")
def test_runs_from_any_folder(path, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}}).execute()
    texts, pictures = [], 0
    page = " ".join((ROOT / "docs" / "notebooks" / f"{path.stem}.md").read_text(encoding="utf-8").split())
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            assert output.get("name") != "stderr", output
            texts.append(output.get("text", ""))
            pictures += "image/png" in output.get("data", {})
            table = re.sub(
                r"<style scoped>.*?</style>", "", output.get("data", {}).get("text/html", ""), flags=re.DOTALL
            )
            for stored in (texts[-1], table):
                assert " ".join(stored.split()) in page, "python docs/build.py --pictures stores what is printed now"
            texts.append(unescape(table))
    drawn, sentences = SAID[path.stem]
    assert pictures == drawn
    for sentence in sentences:
        assert sentence in "".join(texts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq")
def test_results_are_written_in_a_kernel(tmp_path, monkeypatch):
    """A kernel has threads of its own, so that it cannot be forked."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    source = "import simulator as hosim\nhosim.run('tiny_train_910c').write('out')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[0].outputs == []
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "static" / "timeline.png").exists()

"""Every notebook runs from top to bottom, from any folder, without a warning; it and its page show what it prints."""

import re
from base64 import b64decode
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
            "static meets stall <= 0.1 % at links.*.bandwidth 56 GB/s",
            "bound: no plan that runs each op once meets stall <= 0.1 % below links.*.bandwidth 56 GB/s",
            "static with recompute has no stall in 4 of 5 cells, the first at links.*.bandwidth 32.0 GB/s",
            "buses.pcie.bandwidth is 100 GB/s: set both",
        ],
    ),
    "05_how_much_hbm_for_my_context_length": (
        2,
        [
            "static meets step <= 1.01x at peak.hbm 37.2 GB",
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
    "07_run_my_step_in_less_memory": (2, ["77 MB at most", "All losses are equal to the last bit."]),
}
"""By notebook, how many pictures it draws, and some of what it prints."""


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [*SAID]


RENEW = "python docs/build.py --pictures stores what is printed now"


def told(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells print, and their tables, without the style."""
    texts = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        assert output.get("name") != "stderr", output
        html = output.get("data", {}).get("text/html", "")
        texts += [output.get("text", ""), re.sub(r"<style scoped>.*?</style>\n", "", html, flags=re.DOTALL)]
    return [" ".join(text.split()) for text in texts]


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """What the cells draw."""
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    return [b64decode(data["image/png"]) for data in outputs if "image/png" in data]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stored_small_and_are_those_of_the_page(path):
    """Where a forge renders it, a notebook shows what it prints and draws."""
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not any(cell.metadata for cell in notebook.cells), "when it ran tells nobody anything"
    assert path.stat().st_size < 200_000
    drawn, sentences = SAID[path.stem]
    folder = ROOT / "docs" / "notebooks"
    page = " ".join((folder / f"{path.stem}.md").read_text(encoding="utf-8").split())
    assert all(text in page for text in told(notebook)), RENEW
    assert all(" ".join(line.split()) in page for cell in code for line in cell.source.splitlines()), RENEW
    stored = pictures(notebook)
    assert len(stored) == drawn
    assert sorted(stored) == sorted(file.read_bytes() for file in (folder / f"{path.stem}_files").iterdir()), RENEW
    for sentence in sentences:
        assert sentence in unescape(" ".join(told(notebook)))


def test_users_import_hosim():
    for path in [*NOTEBOOKS, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "simulator" / "__init__.py"]:
        assert "import simulator" not in path.read_text(encoding="utf-8"), path


MEASURED = {"07_run_my_step_in_less_memory"}
"""What runs on this machine: times, and what moves because of them, differ from run to run."""
_QUANTITY = re.compile(r"\b[\d.,]+ (?:[num]?s|min|[kMG]?B)\b")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq")
def test_runs_from_any_folder(path, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    if path.stem in MEASURED:
        pytest.importorskip("torch")
    notebook = nbformat.read(path, as_version=4)
    stored = told(notebook)
    NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}}).execute()
    blank = "a quantity" if path.stem in MEASURED else r"\g<0>"
    assert [_QUANTITY.sub(blank, text) for text in told(notebook)] == [_QUANTITY.sub(blank, text) for text in stored], (
        RENEW
    )
    assert len(pictures(notebook)) == SAID[path.stem][0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:jupyter_client")
@pytest.mark.filterwarnings("ignore::RuntimeWarning:zmq")
def test_results_are_written_in_a_kernel(tmp_path, monkeypatch):
    """A kernel has threads of its own, so that it cannot be forked."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    source = "import hosim\nhosim.run('tiny_train_910c').write('out')"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert notebook.cells[0].outputs == []
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "static" / "timeline.png").exists()

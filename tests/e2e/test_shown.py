"""The documents are true: what they show is what is printed, and its Python runs."""

import re
import shlex
from pathlib import Path

import chain
import pytest
import yaml
from pages import PAGES, ROOT, blocks, printed
from parameters import count
from sensitivity import sensitivity

import simulator as hosim
from simulator.catalog import read_workload
from simulator.cli import main
from simulator.report.tables import sections
from simulator.run.stories import layout, plan


@pytest.fixture(scope="module", autouse=True)
def commands_plan_quickly():
    """What pages show is what the whole search of `static` finds."""


@pytest.fixture(scope="module", autouse=True)
def runs_end_with_their_rows():
    """They end with what would make them free, too."""


FIRST = "llama3_8b_train_910c"


@pytest.fixture(scope="module")
def first():
    """What the README and the first tutorial run."""
    return hosim.run(FIRST)


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """What the Python example leaves behind, of a scenario that takes a moment."""
    path = chain.write(tmp_path_factory.mktemp("inputs"))
    (example, *_) = blocks((ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8"), "python")
    folder = tmp_path_factory.mktemp("example")
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(example.replace(FIRST, str(path)), "install.md", "exec"), names)
    return {**names, "folder": folder}


def test_the_python_example_runs(namespace):
    assert namespace["results"]["static"].status == "ok"
    assert (namespace["folder"] / "results" / "llama3_8b" / "report.html").exists()


@pytest.mark.slow
def test_every_expectation_of_the_first_scenario_holds(first):
    assert first.expectations
    assert [str(e) for e in first.expectations if e.is_broken] == []


def test_the_table_and_the_sentences_are_what_is_printed(first):
    command = f"hosim run {FIRST} --out"
    found = re.findall(rf"<!-- output of: {command} (\S+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)
    assert len(found) == 2, "the README and the first tutorial"
    ((out, shown),) = set(found)
    assert shown == printed(first, out)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "counts"), [("64 GB", [40, 1, 18, 0]), ("58 GB", [65, 24, 38, 0])])
def test_the_counts_of_compactions_are_what_comes_out(budget, counts, tmp_path):
    source = Path(__file__).parents[2] / "scenarios" / "llama3_8b_fragmentation_910c.yaml"
    document = yaml.safe_load(source.read_text(encoding="utf-8"))
    lru, furthest = ({"evict": evict, "look_ahead": 0} for evict in ("lru", "furthest"))
    rows = [("reactive", lru), ("reactive", furthest), ("offload_saved", {}), ("offload_saved", {"synchronous": True})]
    document["policies"] = [
        {"policy": policy, "label": f"row {i}", "options": options, "allocator": "best_fit"}
        for i, (policy, options) in enumerate(rows)
    ]
    document |= {"budget": budget, "expect": [], "assumed": {"budget": "the table of the page"}}
    (tmp_path / "counts.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    found = [row.summary["compactions"] for row in hosim.run(tmp_path / "counts.yaml").values()]
    assert found == counts
    (table,) = re.findall(r"\| row \| 64 GB \| 58 GB \|\n.*?\n((?:\|.*\n)+)", PAGES)
    column = {"64 GB": -2, "58 GB": -1}[budget]
    assert [int(line.strip("| ").split(" | ")[column]) for line in table.splitlines()] == counts


def test_the_tensor_is_told_as_hosim_plan_does():
    ((tensor, shown),) = re.findall(
        r"<!-- output of: hosim plan llama3_8b_train_910c --tensor (\S+) -->\n```text\n(.*?)```", PAGES, re.DOTALL
    )
    assert plan("llama3_8b_train_910c").text(tensor) + "\n" == shown


def test_the_layout_is_told_as_hosim_layout_does():
    ((workload, shown),) = re.findall(r"<!-- output of: hosim layout (\S+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)
    assert layout(workload) + "\n" == shown


@pytest.mark.slow
def test_the_limits_of_the_guide_are_what_hosim_limits_prints():
    ((name, row, shown),) = re.findall(
        r"<!-- output of: hosim limits (\S+) --policy (\S+) -->\n```text\n(.*?)```", PAGES, re.DOTALL
    )
    assert f"{hosim.limits(name, policies=[row])}\n" == shown


_SWEPT = re.findall(r"<!-- output of: (hosim sweep [^\n]+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)


_LONG = re.compile(
    "uncertain|layer_scaling|prefill_decode_pools|recommender_1t2_placements|vision_language_mpipe|llama3_8b_2x2x2|scaling_|"
    "--plans once"
)


@pytest.mark.parametrize(
    ("line", "shown"),
    [pytest.param(*one, id=one[0], marks=[pytest.mark.slow] * bool(_LONG.search(one[0]))) for one in _SWEPT],
)
def test_the_grids_of_the_guide_are_what_hosim_sweep_prints(hosim, tmp_path, line, shown):
    assert shown == hosim(*shlex.split(line)[1:], "--cache", tmp_path).out


_ASKED = re.findall(r"<!-- output of: (hosim (?:frontier|crossover) [^\n]+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "shown"), _ASKED, ids=[line for line, _ in _ASKED])
def test_what_is_asked_back_is_what_is_printed(line, shown, hosim):
    assert shown == hosim(*shlex.split(line)[1:]).out


_SERVED = re.findall(r"<!-- output of: hosim serve (\S+) -->\n```text\n(.*?)```", PAGES, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shown"), _SERVED)
def test_what_is_served_is_what_hosim_serve_prints(name, shown):
    assert f"{hosim.serve(name)}\n" == shown


def test_every_file_that_the_first_tutorial_names_is_written(namespace):
    written = {p.name for p in (namespace["folder"] / "results" / "llama3_8b").rglob("*") if p.is_file()}
    page = (ROOT / "docs" / "tutorials" / "first-run.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:<row>/)?([a-z]+\.(?:html|png|csv|jsonl|json|yaml|perfetto\.json\.gz))`", page))
    assert {"report.html", "timeline.png", "waits.csv", "summary.json", "scenario.yaml"} <= named
    assert named <= written


def test_every_column_of_the_table_is_explained(namespace):
    explained = set(re.findall(r"^\| `([^`]+)` \|", PAGES, re.MULTILINE))
    rows = list(namespace["results"].values())
    times, real, causes, _ = sections(rows)
    for column in (*times, *real, *causes):
        assert column.head in explained


def test_the_models_of_inference_are_counted_as_the_table_says():
    rows = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|( `\w+_decode`.* B )\|$", PAGES, re.M)]
    assert len(rows) == 8
    for names, total, _, active, _, kv_bytes in rows:
        for name in re.findall(r"`(\w+)`", names):
            workload = read_workload(name)
            found = count(workload.model)
            assert float(total.removesuffix(" B").replace(",", "")) == float(f"{found.total / 1e9:.4g}")
            through = found.active - (found.table if active.endswith("(*)") else 0)
            printed = "all" if through == found.total else f"{through / 1e9:.4g} B"
            assert active.removesuffix(" (*)") == printed
            assert (
                int(kv_bytes.removesuffix(" B").replace(",", ""))
                == workload.model.kv_elements * workload.dtypes.kv_bytes
            )


@pytest.mark.slow
def test_a_comparison_is_what_hosim_diff_prints(tmp_path):
    (shown,) = re.findall(
        r"<!-- output of: hosim diff at_33 at_50, row static -->\n```text\n(.*?)```", PAGES, re.DOTALL
    )
    for name, change in (("at_33", None), ("at_50", {"links.*.bandwidth": "50 GB/s"})):
        (tmp_path / name).write_bytes(hosim.run("llama3_8b_train_910c", policies=["static"], set=change).json())
    assert f"{hosim.diff(tmp_path / 'at_33', tmp_path / 'at_50')}\n" == shown


@pytest.mark.slow
def test_what_a_claim_depends_on_is_what_its_command_prints():
    line = r"<!-- output of: python tests/sensitivity.py (\S+) -->\n```text\n(.*?)```"
    ((name, shown),) = re.findall(line, PAGES, re.DOTALL)
    assert f"{sensitivity([name])}\n" == shown


RECIPES = dict(re.findall(r"<!-- recipe: (\w+) -->\n```yaml\n(.*?)```", PAGES, re.DOTALL))


def _scripts(recipe):
    """Command lines of a recipe, in order."""
    document = yaml.safe_load(recipe)
    if "jobs" in document:
        steps = [step for job in document["jobs"].values() for step in job["steps"]]
        return [line for step in steps for line in step.get("run", "").splitlines()]
    return [line for job in document.values() for line in job["script"]]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_plans")
@pytest.mark.parametrize("name", ["github", "gitlab"])
def test_the_commands_of_a_recipe_do_what_it_needs(name, tmp_path, monkeypatch):
    """The first run is kept as that of main; then a slower link is found by the comparison, which fails."""
    monkeypatch.chdir(tmp_path)
    lines = [line for line in _scripts(RECIPES[name]) if line.startswith("hosim ")]
    replay, told, judged = ([part for part in line.split() if part != "||"] for line in lines)
    chain.write(tmp_path).rename("offload.yaml")
    old = Path(judged[2])
    assert _exit_code(replay) == 0
    Path("results/new").rename("kept")
    old.parent.mkdir(exist_ok=True)
    Path("kept" if name == "github" else "kept/summary.json").rename(old)
    machine = Path("machine.yaml")
    machine.write_text(machine.read_text().replace("4 GB/s", "3 GB/s"))
    assert _exit_code(replay) == 0
    assert Path("results/new.xml").exists()
    assert _exit_code(told[: next(i for i, part in enumerate(told) if part.startswith(">"))]) == 1
    assert _exit_code(judged) == 1


def _exit_code(words):
    with pytest.raises(SystemExit) as ended:
        main(words[1:])
    return ended.value.code


def test_what_a_recipe_keeps_is_what_it_writes():
    github, gitlab = (yaml.safe_load(RECIPES[name]) for name in ("github", "gitlab"))
    steps = {step.get("name"): step for step in github["jobs"]["hosim"]["steps"]}
    assert {step["uses"] for step in steps.values() if "uses" in step} <= {
        "actions/checkout@v6",
        "actions/setup-python@v6",
        "actions/upload-artifact@v6",
        "mikepenz/action-junit-report@v6",
    }
    kept = steps["Keep the result"]["with"]
    assert f"--name {kept['name']} " in steps["Fetch the result of main"]["run"]
    assert steps["Show the expectations as tests"]["with"]["report_paths"].startswith(kept["path"])
    job, compare = gitlab.values()
    assert job["artifacts"]["reports"]["junit"].startswith(job["artifacts"]["paths"][0])
    assert "hosim" in compare["needs"]

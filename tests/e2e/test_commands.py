"""`hosim list`, `check`, `schema`, `--version` and `--help`."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import chain
import click
import pytest

import simulator as hosim_api
from simulator import engine
from simulator.cli import hosim as group
from simulator.engine import reference, replay
from simulator.policies import POLICIES

pytestmark = pytest.mark.usefixtures("pictures_are_blank")


def test_version(hosim, monkeypatch):
    """With the engine, and what to do for the one that is missing."""
    version = hosim_api.__version__
    monkeypatch.setattr(replay, "is_built", lambda: True)
    assert hosim("--version").out == f"hosim {version} (engine: compiled)\n"
    monkeypatch.setattr(replay, "is_built", lambda: False)
    assert hosim("--version").out == f"hosim {version} (engine: simpy); {engine.hint()}\n"
    monkeypatch.setenv("HOSIM_ENGINE", "simpy")
    assert hosim("--version").out == f"hosim {version} (engine: simpy)\n"


def test_a_command_replays_by_the_engine_that_it_names(hosim, tmp_path, monkeypatch):
    """And its page names a command without it, as nothing depends on it."""
    path, by = chain.write(tmp_path), []
    own = reference.run
    monkeypatch.setattr(reference, "run", lambda *given: by.append(os.environ["HOSIM_ENGINE"]) or own(*given))
    out = tmp_path / "out"
    assert hosim("run", path, "--policy", "reactive", "--engine", "simpy", "--out", out).code == 0
    assert set(by) == {"simpy"}
    assert "HOSIM_ENGINE" not in os.environ
    page = (out / "report.html").read_text()
    assert "hosim run" in page
    assert "simpy" not in page
    done = hosim("run", path, "--engine", "simply")
    assert (done.code, done.out) == (1, "")
    message = "hosim: engine: an engine is one that hosim has, found 'simply'; use one of auto, simpy, compiled"
    assert done.err.startswith(message)


@pytest.mark.parametrize(
    "command", [[], ["run"], ["plan"], ["layout"], ["sweep"], ["frontier"], ["list"], ["check"], ["schema"], ["graph"]]
)
def test_help_has_examples(command, hosim):
    done = hosim(*command, "--help")
    assert done.code == 0
    assert "Examples:\n    hosim " in done.out.replace("Start here:", "Examples:")


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Each command that is no group, with its name."""
    if not isinstance(command, click.Group):
        yield " ".join(path), command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), *path, name)


TWO_MEANINGS = {"--step": "a step of yours, or the number of one that was recorded", "--tensor": "its name, or ranks"}


def test_an_option_means_the_same_in_all_commands():
    """By the name that help prints first; further names are those of earlier versions."""
    meanings: dict[str, dict[str, list[str]]] = {}
    for name, command in commands(group):
        for option in (given for given in command.params if isinstance(given, click.Option)):
            first = next(opt for opt in (*option.opts, *option.secondary_opts) if opt.startswith("--"))
            meaning = option.make_metavar(click.Context(command)).replace("FILE", "PATH").replace("TEXT", "NAME")
            meaning = "one of some words" if meaning.startswith("[") else meaning
            meanings.setdefault(first, {}).setdefault(meaning, []).append(name)
    assert {"--out", "--of", "--over", "--at-most", "--budget", "--grid", "--policy"} <= meanings.keys()
    assert {name for name, of in meanings.items() if len(of) > 1} == TWO_MEANINGS.keys(), meanings
    assert "--output" not in meanings, "what is written goes --out"


def test_list_names_everything_with_its_assumptions(hosim):
    out = hosim("list").out
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert {"ascend_910c_die", "h100_sxm", "llama3_8b_train", "llama3_8b_train_910c", *POLICIES} <= set(lines)
    assert "assumed" in lines["ascend_910c_die"]
    assert "fitted" in lines["llama3_8b_train_910c"]
    by = {name: lines[name].split()[2] for name in ("chat_kv_tiers_h100", "kv_reuse_h100", "tiny_train_910c")}
    assert [*by.values()] == ["serve", "serve", "run"], "the command that runs a scenario"


def test_list_of_one_kind_is_one_line_each(hosim):
    lines = hosim("list", "policies").out.splitlines()
    assert [line.split()[0] for line in lines] == list(POLICIES)


def test_check_reads_documents_and_graphs_and_runs_nothing(hosim, scenario):
    folder = scenario.parent
    done = hosim("check", scenario, folder / "machine.yaml", folder / "workload.yaml", folder / "graph.jsonl")
    assert done.code == 0
    assert [line.rpartition(": ")[2] for line in done.out.splitlines()] == ["ok"] * 4
    assert "3 rows, 13 ops, 13 tensors" in done.out


def test_help_of_run_names_the_column_that_the_table_leaves_out(hosim):
    assert "least_peak_bytes" in hosim("run", "--help").out


def test_check_of_a_plan_needs_a_scenario_for_its_steps(hosim, scenario):
    plan = chain.write_lines(scenario.parent / "mine.jsonl", chain.plan_lines(detach_early=True))
    alone = hosim("check", plan)
    assert alone.code == 0
    checked = hosim("check", plan, "--scenario", scenario)
    assert checked.code == 1
    assert "'bwd/0' reads later" in checked.err
    chain.write_lines(plan, chain.plan_lines())
    held = "for chain; as issued it holds up to 6.70 MB of hbm, of a budget of "
    much = scenario.with_name("much.yaml")
    much.write_text(chain.SCENARIO.replace("4.3 MB", "6.7 MB"), encoding="utf-8")
    assert hosim("check", plan, "--scenario", much).out.endswith(f"{held}6.70 MB: ok\n")
    done = hosim("check", plan, "--scenario", scenario)
    assert done.code == 0
    assert done.out.endswith(f"{held}4.30 MB: it must wait for room, and may block itself: ok\n")


def test_a_graph_that_is_there_is_kept_unless_it_is_to_be_replaced(hosim, tmp_path):
    out = tmp_path / "graphs"
    command = ("graph", "tiny_train", "--out", out)
    first = hosim(*command).out
    (out / "graph.jsonl").write_text("changed by hand", encoding="utf-8")
    kept = hosim(*command)
    rule = f"{out}: a file that is there is kept, found {out / 'graph.jsonl'}; choose another folder, or say --force"
    assert (kept.code, rule in kept.err) == (1, True)
    assert (out / "graph.jsonl").read_text(encoding="utf-8") == "changed by hand"
    replaced = hosim(*command, "--force")
    assert (replaced.out, replaced.err) == (first, "")
    assert [path.name for path in tmp_path.iterdir()] == ["graphs"], "nothing of the old one is kept beside it"
    assert (out / "graph.jsonl").read_text(encoding="utf-8").startswith("{")
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    assert "'notes.txt' in it" in hosim(*command, "--force").err


@pytest.mark.parametrize(
    ("of_class", "where"),
    [
        (("  achieved_fraction:\n", "  achieved_fraction:\n    atention: 0.4\n"), "compute.achieved_fraction"),
        (("\ncompute:\n", "\ncompute:\n  class_bandwidth: {atention: 0.4}\n"), "compute.class_bandwidth"),
        (("\nhost:\n", "\nhost:\n  each_class: {atention: 4 us}\n"), "host.each_class"),
    ],
)
def test_a_class_of_ops_of_a_machine_is_one_that_the_workload_can_have(hosim, tmp_path, of_class, where):
    """A model's ops have hosim's classes; those of a graph may have their own."""
    machine = (Path(hosim_api.__file__).parents[1] / "hardware_profiles" / "ascend_910c_die.yaml").read_text(
        encoding="utf-8"
    )
    changed = machine.replace(*of_class)
    (tmp_path / "machine.yaml").write_text(changed.replace("name: ascend_910c_die", "name: machine"), encoding="utf-8")
    hosim("graph", "tiny_train", "--out", tmp_path / "graph")
    outcomes = []
    for workload in ("tiny_train", "graph/workload.yaml"):
        file = tmp_path / "scenario.yaml"
        head = "schema: hosim/scenario/1\nname: scenario\nhardware: machine.yaml\npolicies: [resident]\n"
        file.write_text(f"{head}workload: {workload}\n", encoding="utf-8")
        outcomes.append(hosim("check", file))
    assert [outcome.code for outcome in outcomes] == [1, 0], outcomes[1].err
    assert f"{where}: figures are of classes of ops, found 'atention'; use one of matmul, " in outcomes[0].err
    assert "(did you mean 'attention'?); a graph may have classes of its own" in outcomes[0].err


def test_a_graph_is_written_and_runs_as_what_it_was_made_from(hosim, tmp_path):
    out = tmp_path / "graph"
    done = hosim("graph", "tiny_train", "--out", out)
    assert done.code == 0
    assert done.out.splitlines()[0] == f"{out / 'graph.jsonl'}: 216 ops, 261 tensors"
    scenario = "schema: hosim/scenario/1\nname: same\nhardware: ascend_910c_die\nworkload: {}\npolicies: [resident]\n"
    steps = []
    for workload in ("tiny_train", out / "workload.yaml"):
        file = tmp_path / "same.yaml"
        file.write_text(scenario.format(workload), encoding="utf-8")
        steps.append(json.loads(hosim("run", file, "--json").out)["rows"][0]["step_ns"])
    assert steps[0] == steps[1]


def test_a_folder_of_results_is_no_file_to_check(hosim, tmp_path):
    assert "found a folder; name the files in it" in hosim("check", tmp_path).err


def test_a_name_of_a_file_is_printed_as_it_may_be(hosim, scenario):
    odd = scenario.rename(scenario.with_name("\x1b[31m.yaml"))
    done = hosim("check", odd)
    assert done.out.splitlines() == [f"{odd.parent}/\\x1b[31m.yaml: scenario, 3 rows, 13 ops, 13 tensors: ok"]


def test_check_goes_on_after_a_bad_file(hosim, scenario):
    bad = scenario.parent / "bad.yaml"
    bad.write_text("schema: hosim/hardware/2\n")
    done = hosim("check", bad, scenario, scenario.parent / "none.yaml")
    assert done.code == 1
    assert done.out.count(": ok") == 1
    assert [line.startswith("hosim: ") for line in done.err.splitlines()] == [True, True]


def test_check_takes_catalogue_names(hosim):
    done = hosim("check", "ascend_910c_die", "llama3_8b_train_910c")
    assert done.code == 0
    assert done.out.count(": ok") == 2


@pytest.mark.parametrize("kind", ["hardware", "workload", "scenario"])
def test_schema_is_json_schema(kind, hosim):
    schema = json.loads(hosim("schema", kind).out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"schema", "name"} <= set(schema["properties"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("llama3_8b_train", "give --hardware NAME --workload llama3_8b_train in place of a scenario"),
        ("h100_sxm", "give --hardware h100_sxm --workload NAME in place of a scenario"),
    ],
)
def test_a_part_of_a_scenario_is_known_as_one(hosim, name, said):
    done = hosim("run", name)
    assert (done.code, done.out) == (1, "")
    assert said in done.err


def test_what_a_question_lacks_is_named_as_its_option(hosim):
    done = hosim("frontier", "--hardware", "h100_sxm", "--workload", "llama31_8b_decode")
    assert done.code == 1
    assert "--of: a question names the field to search" in done.err

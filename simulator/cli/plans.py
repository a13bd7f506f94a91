"""The commands about plan files: `hosim lint` and `export`."""

from __future__ import annotations

from pathlib import Path

import click

import simulator as hosim
from simulator.cli import common
from simulator.exporters import TARGETS

_TROUBLE = 2


@common.command("Name every fault of a plan.", "json")
@click.argument("plan", type=common.PATH)
@click.option("--scenario", metavar="NAME", help="The scenario that it was made for.")
@click.option("--graph", type=common.PATH, metavar="FILE", help="Without a scenario: the graph.")
@click.option("--hardware", metavar="NAME", help="With --graph: the machine. [default: the plan's tiers, all linked]")
@click.option("--budget", metavar="SIZE", help="Room of the compute tier, such as 6 GB, if it is another.")
def lint(
    plan: Path, scenario: str | None, graph: Path | None, hardware: str | None, budget: str | None, as_json: bool
) -> int:
    """Name all faults of PLAN, a file of hosim's plan form by a tool or a person; nothing runs.

    \b
    Examples:
      hosim lint plan.jsonl --graph graph.jsonl
      hosim lint plan.jsonl --graph graph.jsonl --hardware h100_sxm --budget "6 GB" --json
      hosim lint plan.jsonl --scenario llama3_8b_train_910c

    Faults are a use before the prefetch, a detach before the store, a copy that nobody waits for, a double
    prefetch, a budget exceeded, and more. Each has its action, op, tensor, reason and mend. Every run checks the
    same rules. hosim check stops at the first fault, takes many files of any kind, and ignores useless copies.

    The exit code is 0 if the plan has no fault, 1 if it has, 2 if it cannot be judged.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    import orjson

    from simulator.cli.check import lint as find

    if (scenario is None) == (graph is None) or (scenario and hardware):
        raise click.UsageError("name the run of the plan: --scenario NAME, or --graph FILE, perhaps with --hardware")
    try:
        faults = find(plan, scenario, graph, hardware, budget)
    except hosim.HosimError as error:
        click.echo(f"hosim: {error}", err=True)
        return _TROUBLE
    if as_json:
        keys, parts = ("where", "rule", "reason", "mend"), [fault.error.args for fault in faults]
        rows = [fault._asdict() | dict(zip(keys, args, strict=True)) for fault, args in zip(faults, parts, strict=True)]
        rows = [{key: value for key, value in row.items() if key != "error"} for row in rows]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(f"{fault.kind}: {fault.error}" for fault in faults) or f"{plan}: no fault")
    return common.FAILED if faults else 0


@common.command("Write a plan in the form of another program.")
@click.argument("plan", type=common.PATH)
@click.option("--scenario", metavar="NAME", help="The scenario that it was made for.")
@click.option("--hardware", metavar="NAME", help="Without a scenario: the machine; a name or a .yaml.")
@click.option("--workload", metavar="NAME", help="Without a scenario: the workload; a name or a .yaml.")
@click.option("--to", "target", type=click.Choice(tuple(TARGETS)), required=True, help="The form.")
@click.option("-o", "--out", "--output", "out", type=common.PATH, required=True, callback=common.writable,
              metavar="FILE", help="The file to write.")  # fmt: skip
def export(
    plan: Path, scenario: str | None, hardware: str | None, workload: str | None, target: str, out: Path
) -> None:
    """Write PLAN, a file of hosim's plan form for a scenario, in the form of another program.

    \b
    Examples:
      hosim export plan.jsonl --scenario tiny_train_910c --to chakra -o plan.et
      hosim export plan.jsonl --hardware h100_sxm --workload mine.yaml --to sac -o policy.py

    sac is a policy for torch.utils.checkpoint and torch.compile: save, offload or recompute, by op; residency a
    schedule for HyperParallel's ResidencySchedule; chakra a trace for ASTRA-sim, with memory nodes. A plan that
    a form cannot express is refused, with the reason.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from importlib import import_module

    from simulator.cli.check import plan_for
    from simulator.errors import insist
    from simulator.run import scenario_to_run

    case, task, read = plan_for(plan, scenario_to_run(scenario, hardware, workload))
    must, do = "other programs read in the compute tier alone", "drop in_place of the workload, and plan again"
    insist(not task.graph.in_place, f"export of plan {read.name!r}", must, "tensors read in place", do)
    for sentence in import_module(f"simulator.exporters.to_{target}").write(case, task, read, out):
        click.echo(sentence)
    click.echo(f"written: {out}")

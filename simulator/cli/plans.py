"""The commands about plan files: `hosim lint` and `export`."""

from __future__ import annotations

from pathlib import Path

import click

import simulator as hosim
from simulator.cli import common

_TROUBLE = 2


@common.command("Name all that is wrong with a plan.", "json")
@click.argument("plan", type=common.PATH)
@click.option("--scenario", metavar="NAME", help="The scenario that it was made for.")
@click.option("--graph", type=common.PATH, metavar="FILE", help="Without a scenario: the graph.")
@click.option("--hardware", metavar="NAME", help="With --graph: the machine. [default: the plan's tiers, all linked]")
@click.option("--budget", metavar="SIZE", help="Room of the compute tier, such as 6 GB, if it is another.")
def lint(
    plan: Path, scenario: str | None, graph: Path | None, hardware: str | None, budget: str | None, as_json: bool
) -> int:
    """Name all faults of PLAN, a file of hosim's plan form, that a tool or a person wrote; nothing runs.

    \b
    Examples:
      hosim lint plan.jsonl --graph graph.jsonl
      hosim lint plan.jsonl --graph graph.jsonl --hardware h100_sxm --budget "6 GB" --json
      hosim lint plan.jsonl --scenario llama3_8b_train_910c

    Such as: a use before the prefetch, a detach before the store, a copy that nobody waits for, a double
    prefetch, a budget exceeded. Each is told with action, op, tensor, reason and mend. The rules are those by
    which every run is checked. hosim check stops at the first fault, and reads any number and kind of files; it
    says nothing of copies that are of no use.

    The exit code is 0 if there is nothing to tell, 1 if there is, 2 if the plan cannot be judged.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    import orjson

    from simulator.cli.check import lint as find

    if (scenario is None) == (graph is None) or (scenario and hardware):
        raise click.UsageError("say what the plan is for: --scenario NAME, or --graph FILE, perhaps with --hardware")
    try:
        faults = find(plan, scenario, graph, hardware, budget)
    except hosim.HosimError as error:
        click.echo(f"hosim: {error}", err=True)
        return _TROUBLE
    if as_json:
        rows = []
        for fault in faults:
            where, rule, reason, mend = fault.error.args
            told = {"where": where, "rule": rule, "reason": reason, "mend": mend}
            rows.append({**fault._asdict(), "action": fault.action if fault.action >= 0 else None} | told)
            del rows[-1]["error"]
        click.echo(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        click.echo("\n".join(f"{fault.kind}: {fault.error}" for fault in faults) or f"{plan}: nothing to tell")
    return common.FAILED if faults else 0

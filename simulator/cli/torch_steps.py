"""The commands that run steps of PyTorch: `hosim torch run`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

import simulator as hosim
from simulator.cli import common


@click.group("torch", short_help="Run a step of PyTorch within a budget of memory.")
def torch() -> None:
    """Run a training step of PyTorch within a budget of memory, under hosim's plans."""


@common.command("Run a step under policies; print predicted and measured times.", "out", "json", name="run")
@click.argument("source", metavar="MODULE:FUNCTION")
@click.option("--budget", required=True, metavar="SIZE", help="Most bytes of storages in memory: 6GB.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help="A policy, or a row of PyTorch itself. [default: static, reactive]",
)
@click.option("--steps", type=click.IntRange(1), default=5, show_default=True, help="Steps that are measured.")
@click.option("--device", metavar="NAME", help="Where it computes: cpu, cuda. [default: where the module is]")
@click.option(
    "--tier",
    type=click.Choice(["disk", "memory"]),
    help="Where tensors go. [default: memory from an accelerator, else disk]",
)
@click.option("--folder", type=common.PATH, help="Where the file lies. [default: the system's for temporary files]")
def run(source: str, policies: tuple[str, ...], *, out: Path | None, as_json: bool, **how: Any) -> int:
    """Run a training step of PyTorch on this machine within a budget, under one policy after the other.

    MODULE:FUNCTION makes the step: it returns a module, or a function that runs a step, and its inputs; a
    dictionary at the end holds keyword inputs, optimizer and loss:

    \b
      return model, tokens, {"optimizer": torch.optim.AdamW}

    \b
    Examples:
      hosim torch run mine:step --budget 6GB
      hosim torch run mine:step --budget 6GB --policy static --policy lookahead --folder /scratch
      hosim torch run mine:step --budget 6GB --policy resident --policy saved_tensors_hooks --policy static
      hosim torch run mine:step --budget 6GB --out results/mine

    Tensors that do not fit go to a file in the folder, which is removed in the end, or from an accelerator to pinned
    memory. The first steps of each policy run on demand; then the step is planned, and the measured steps run under
    the plan.

    Besides policies, a row may be PyTorch by itself, without a budget: resident, the step as it is;
    saved_tensors_hooks, tensors saved for backward leave at once; checkpointing, each child of the module's
    longest ModuleList or Sequential is checkpointed.

    --out also writes a page, report.html, with the measured timeline of each policy under the predicted one,
    and both as processes of one trace for ui.perfetto.dev, trace.perfetto.json.gz.

    The exit code is 1 if a loss differs from that of the first policy in any bit, or a policy cannot run.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.importers.torch import finding
    from simulator.report.tables import ProgressBar

    with finding(source, f"torch run {source}") as find, ProgressBar() as progress, redirect_stdout(sys.stderr):
        compared = hosim.torch.compare(find(), policies=policies or ("static", "reactive"), progress=progress, **how)
        if out is not None:
            compared.write(out, common.reproducing())
    click.echo(compared.json() if as_json else f"{compared}\n", nl=False)
    return 0 if all(row["is_equal"] for row in compared.rows) else common.FAILED


torch.add_command(run)

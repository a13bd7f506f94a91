"""The command `hosim scaling`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Run a step at each point of a curve, and compare.")
@click.argument("scenario")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Run only this row, or this policy.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the hardware.")
@click.option("--unfolded", is_flag=True, help="Simulate every rank; changes no time, and takes longer.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table, its figures and a picture here.")
def scaling(
    scenario: str, out: Path | None, changes: tuple[str, ...], policies: tuple[str, ...], unfolded: bool
) -> int:
    """Run SCENARIO at each point of its key `scaling:`, one line per point and policy.

    \b
    Examples:
      hosim scaling llama3_8b_layer_scaling
      hosim scaling mine.yaml --unfolded --out results/scaling

    A point sets fields of the workload, such as `parallel.data` or `batch`. Where points differ in
    ranks, the efficiency is that of tokens per second and rank against the first point. Ranks that run
    the same stand for one another, which is exact, where nothing tells them apart; --unfolded simulates
    every one.

    The exit code is 1 if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog
    from simulator.report.progress import Shown
    from simulator.run.scaling import scaling as run_scaling

    if out is not None:
        from simulator.report.files import check_target

        check_target(out)
    settings = dict(catalog.setting(change) for change in changes)
    with Shown() as progress:
        found = run_scaling(scenario, set=settings, policies=policies or None, unfolded=unfolded, progress=progress)
    if out is not None:
        found.write(out)
    click.echo(str(found))
    return 0 if any(row["status"] == "ok" for row in found.rows) else 1

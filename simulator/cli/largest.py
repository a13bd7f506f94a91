"""The command `hosim largest`."""

from __future__ import annotations

import click


@click.command(short_help="Search the largest batch, or the longest sequence, that fits.")
@click.argument("scenario")
@click.option("--field", metavar="NAME", help="The field of the workload, such as sequence or batch.")
@click.option("--at-most", type=click.IntRange(1), help="The largest value that is tried.")
@click.option("--multiple-of", type=click.IntRange(1), help="Try only multiples of this.")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Search only for this row, or this policy.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the hardware.")
def largest(
    scenario: str,
    field: str | None,
    at_most: int | None,
    multiple_of: int | None,
    policies: tuple[str, ...],
    changes: tuple[str, ...],
) -> int:
    """Search, for each row of SCENARIO, the largest value of a field of the workload with which it still fits.

    \b
    Examples:
      hosim largest long_context_kv_tiers --field sequence --at-most 1048576 --multiple-of 1024
      hosim largest mine.yaml --field batch --at-most 512 --set "tiers.hbm.capacity=80 GB"

    What is not given here is as the scenario says under `largest:`. The table has one line per policy, with
    the tier and the op that are in the way of the next value. The distance between a value that fits and one
    that does not is halved, so what fits is taken to fit with less, too.

    The exit code is 1 if no row fits with any value.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog
    from simulator.report.progress import Shown
    from simulator.run.largest import largest as search

    settings = dict(catalog.setting(change) for change in changes)
    with Shown() as progress:
        found = search(
            scenario,
            field=field,
            at_most=at_most,
            multiple_of=multiple_of,
            set=settings,
            policies=policies or None,
            progress=progress,
        )
    click.echo(str(found))
    return 0 if any(row[found.column] for row in found.rows) else 1

"""The command `hosim validate`."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command(short_help="Recompute published figures, and say which are reproduced.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--scale", "factors", multiple=True, metavar="KEY=FACTOR", help="Multiply a figure of the machine.")
@click.option("--workers", type=click.IntRange(1), help="Processes; the result does not depend on it. [default: cores]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the table and a page here.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (hosim-validate/1), and nothing else.")
@click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures as JUnit XML into this file."
)
def validate(
    scenarios: tuple[str, ...],
    factors: tuple[str, ...],
    workers: int | None,
    out: Path | None,
    as_json: bool,
    junit: Path | None,
) -> int:
    """Recompute the printed figures of all claims in the catalogue, or of each SCENARIO, one line per figure.

    \b
    Examples:
      hosim validate
      hosim validate llama3_8b_2x2x2 mine.yaml
      hosim validate --scale "links.*.bandwidth=0.5"
      hosim validate --out results/claims

    A figure `holds` if it was predicted and ours is within the tolerance that its scenario states; something
    was `fitted` to it; it is only `shown` beside ours; it is `missed`, for the reason below the table; or it is BROKEN.
    --scale shows which claims depend on a figure of the machine; a machine without it runs as it is.

    The exit code is 1 if one is BROKEN.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog
    from simulator.report.progress import Shown
    from simulator.run.validate import validate as run_validate

    scale = dict(catalog.factor(one) for one in factors)
    if out is not None:
        from simulator.report.files import check_target

        check_target(out)
    if junit is not None:
        from simulator.report.files import check_file

        check_file("--junit", junit)
    with Shown() as progress:
        found = run_validate(scenarios or None, scale=scale, workers=workers or os.cpu_count() or 1, progress=progress)
    if out is not None:
        found.write(out)
    if junit is not None:
        from simulator.report.junit import write

        write(found.checks, junit)
    click.echo(found.json() if as_json else f"{found}\n", nl=False)
    return 1 if found.is_broken else 0

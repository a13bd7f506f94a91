"""The command `hosim serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(short_help="Serve requests that come and leave, and tell latencies.")
@click.argument("scenario")
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Run only this row, or this policy.")
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change the hardware.")
@click.option("--exact", is_flag=True, help="Replay each iteration as it is; takes longer.")
@click.option(
    "--replays",
    type=click.IntRange(1),
    help="End a row that needs more iterations to be replayed, or a hundred times as many in all. [default: 10,000]",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write tables of requests and iterations and a picture.")
def serve(scenario: str, out: Path | None, changes: tuple[str, ...], policies: tuple[str, ...], **more: Any) -> int:
    """Serve the requests of SCENARIO iteration by iteration, one row per policy.

    \b
    Examples:
      hosim serve kv_reuse_h100
      hosim serve kv_reuse_h100 --set "links.h2d.bandwidth=10 GB/s"
      hosim serve mine.yaml --out results/serve

    The scheduler is fixed: each sequence that runs adds a token, prompts fill the rest of max_tokens,
    first come, first served. The policy moves data within an iteration, which the engine replays; alike
    ones once, for which what they attend to is rounded up by less than 1/16, unless --exact is given.
    Requests that come at once are all served; a row that takes more than --replays, or a hundred times
    as many iterations in all, is ended, and says so.
    How far a row is, is told on stderr: on a terminal always, elsewhere every 30 s.

    The exit code is 1 if no row served all requests, or an expectation of the scenario fails (--set switches
    them off).
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator import catalog
    from simulator.report.progress import Shown
    from simulator.serving import serve as serve_scenario

    if out is not None:
        from simulator.report.files import check_target

        check_target(out)
    settings = dict(catalog.setting(change) for change in changes)
    given = {name: value for name, value in more.items() if value is not None}
    with Shown() as progress:
        found = serve_scenario(scenario, set=settings, policies=policies or None, progress=progress, **given)
    if out is not None:
        found.write(out)
    click.echo(str(found))
    failed = [verdict for verdict in found.expectations if verdict.is_broken]
    for verdict in failed:
        click.echo(f"hosim: expectation fails: {verdict}", err=True)
    return 0 if any(row["status"] == "ok" for row in found.rows) and not failed else 1

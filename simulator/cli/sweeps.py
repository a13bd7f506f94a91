"""The commands that sweep: `hosim scaling`, `largest`, `robust`, `sensitivity` and `validate`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from simulator.cli import common

_WORKERS = click.option(
    "--workers",
    type=click.IntRange(1),
    default=lambda: os.cpu_count() or 1,
    help="Processes; the result does not depend on it. [default: cores]",
)


@click.command(short_help="Run a step at each point of a curve, and compare.")
@click.argument("scenario")
@common.rows()
@common.changes()
@_WORKERS
@common.folder()
def scaling(scenario: str, **more: Any) -> int:
    """Run SCENARIO at each point of its key `scaling:`, one line per point and policy.

    \b
    Examples:
      hosim scaling llama3_8b_layer_scaling
      hosim scaling mine.yaml --out results/scaling

    A point sets fields of the workload, such as `parallel.data` or `batch`. Where points differ in
    ranks, the efficiency is that of tokens per second and rank against the first point.

    The exit code is 1 if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.scaling import scaling as sweep

    found, text = common.written(sweep, scenario, **more)
    click.echo(text)
    return common.judged([row["status"] for row in found.rows], ())


@click.command(short_help="Search the largest batch, or the longest sequence, that fits.")
@click.argument("scenario")
@click.option("--field", metavar="NAME", help="The field of the workload, such as sequence or batch.")
@click.option("--at-most", type=click.IntRange(1), help="The largest value that is tried.")
@click.option("--multiple-of", type=click.IntRange(1), help="Try only multiples of this.")
@common.rows()
@common.changes()
def largest(scenario: str, **more: Any) -> int:
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
    from simulator.run.largest import largest as sweep

    found, text = common.written(sweep, scenario, **more)
    click.echo(text)
    return common.judged([row["status"] for row in found.rows], ())


def _levels(context: click.Context, parameter: click.Parameter, text: str | None) -> list[float] | None:
    """Read ``5%,10%`` as shares, ``100ns,5us`` as times; ``none`` as no level."""
    from simulator.units import FieldError, parse

    if text is None:
        return None
    levels = [] if text == "none" else [level.strip() for level in text.split(",")]
    try:
        return [float(one.removesuffix("%")) / 100 if one.endswith("%") else parse(one, "ns") for one in levels]
    except (ValueError, FieldError):
        raise click.BadParameter(f"{text!r} is no list of levels such as 5%,10% (of times, 100ns,5us)") from None


_PERTURBED = (
    ("--jitter", "each op and each link takes its time times a random factor of this spread", "1%,2%,5%,10%,20%"),
    ("--slower-links", "every link has this much less bandwidth", "10%,20%,30%,50%"),
    ("--inspect", "a runtime's look at the state before each compute takes this long", "100ns,500ns,1us,2us,5us"),
    ("--longer", "the model runs on a sequence longer by this much", "1%,5%,10%,25%,50%"),
)


def _perturbations(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, what, levels in reversed(_PERTURBED):
        about = f"Levels, or none: {what}. [default: {levels}]"
        command = click.option(name, callback=_levels, metavar="LEVELS", help=about)(command)
    return command


@click.command(short_help="Replay a plan under jitter, slower links and longer sequences.")
@click.argument("scenario")
@click.option("--policy", default="static", show_default=True, help="Row or policy whose plan is tested.")
@click.option("--against", default="reactive", show_default=True, help="Row or policy that it is compared with.")
@_perturbations
@click.option("--headroom", callback=_levels, metavar="LEVEL", help="Share of the budget that the plan leaves free.")
@click.option("--draws", type=click.IntRange(1), default=20, show_default=True, help="Draws at each level of jitter.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="What the draws begin with.")
@common.changes()
@_WORKERS
@common.folder()
def robust(scenario: str, headroom: list[float] | None, **more: Any) -> None:
    """Replay a plan made for SCENARIO under other conditions, beside a policy that decides while it runs.

    \b
    Examples:
      hosim robust llama3_8b_train_910c
      hosim robust llama3_8b_train_910c --policy recompute --jitter 5% --draws 100 --longer none
      hosim robust llama3_8b_train_910c --headroom 5%
      hosim robust mine.yaml --slower-links 10%,90% --out results/robust

    The plan is made once, for nominal conditions, and replayed unchanged; for a longer sequence it is
    carried over by the names of ops and tensors. Jitter factors are log-normal with mean 1: one for
    each op, and one for each link and draw; the level is their coefficient of variation. What blocks or
    no longer fits is an outcome in the table.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.run.robustness import robustness

    click.echo(common.written(robustness, scenario, headroom=max(headroom or [0.0]), **more)[1])


@click.command(short_help="Say for which values of what is not stated a claim holds.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--all", "every", is_flag=True, help="All scenarios of the catalogue that say what is open.")
@_WORKERS
@click.option("--json", "as_json", is_flag=True, help="Print JSON (hosim-sensitivity/1), and nothing else.")
@common.folder()
def sensitivity(scenarios: tuple[str, ...], every: bool, as_json: bool, **more: Any) -> None:
    """Recompute the printed figures of each SCENARIO with other values of what its source does not state.

    \b
    Examples:
      hosim sensitivity llama3_8b_2x2x2
      hosim sensitivity --all --out results/sensitivity

    The key `claim: unstated:` lists parameters with the ranges in which they may lie. Each is varied alone,
    over a few values first; where a figure turns from holding to failing, the place is searched by
    halving. Nothing is fitted again.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    from simulator.claims.sensitivity import sensitivity as sweep

    if bool(scenarios) == every:
        raise click.UsageError("name scenarios, or say --all")
    found, _ = common.written(sweep, scenarios or None, **more)
    click.echo(found.json() if as_json else f"{found}\n", nl=False)


@click.command(short_help="Recompute published figures, and say which are reproduced.")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--scale", "factors", multiple=True, metavar="KEY=FACTOR", help="Multiply a figure of the machine.")
@_WORKERS
@common.folder()
@click.option("--json", "as_json", is_flag=True, help="Print JSON (hosim-validate/1), and nothing else.")
@common.junit("the figures")
def validate(
    scenarios: tuple[str, ...], factors: tuple[str, ...], as_json: bool, junit: Path | None, **more: Any
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
    from simulator.claims import validate as sweep

    common.check(None, junit)
    found, _ = common.written(sweep, scenarios or None, scale=dict(catalog.factor(one) for one in factors), **more)
    if junit is not None:
        from simulator.report.expectations import write_junit

        write_junit(found.checks, junit)
    click.echo(found.json() if as_json else f"{found}\n", nl=False)
    return 1 if found.is_broken else 0

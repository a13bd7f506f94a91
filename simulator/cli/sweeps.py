"""The commands that sweep: `hosim scaling`, `largest`, `robust`, `sensitivity` and `validate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from simulator.cli import common


@common.command("Run a step at each point of a curve, and compare.", "policy", "set", "workers", "out")
@click.argument("scenario")
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

    return common.judged(common.told(sweep, scenario, **more).rows)


@common.command("Search the largest batch, or the longest sequence, that fits.", "policy", "set")
@click.argument("scenario")
@click.option("--field", metavar="NAME", help="The field of the workload, such as sequence or batch.")
@click.option("--at-most", type=click.IntRange(1), help="The largest value that is tried.")
@click.option("--multiple-of", type=click.IntRange(1), help="Try only multiples of this.")
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

    return common.judged(common.told(sweep, scenario, out=None, **more).rows)


_PERTURBED = (
    ("--jitter", "each op and each link takes its time times a random factor of this spread", "1%,2%,5%,10%,20%"),
    ("--slower-links", "every link has this much less bandwidth", "10%,20%,30%,50%"),
    ("--inspect", "a runtime's look at the state before each compute takes this long", "100ns,500ns,1us,2us,5us"),
    ("--longer", "the model runs on a sequence longer by this much", "1%,5%,10%,25%,50%"),
)


def _perturbations(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, what, levels in reversed(_PERTURBED):
        about = f"Levels, or none: {what}. [default: {levels}]"
        command = click.option(name, callback=common.levels, metavar="LEVELS", help=about)(command)
    return command


@common.command("Replay a plan under jitter, slower links and longer sequences.", "set", "workers", "out")
@click.argument("scenario")
@click.option("--policy", default="static", show_default=True, help="Row or policy whose plan is tested.")
@click.option("--against", default="reactive", show_default=True, help="Row or policy that it is compared with.")
@_perturbations
@click.option("--headroom", callback=common.levels, default="0", help="Share of the budget that the plan leaves free.")
@click.option("--draws", type=click.IntRange(1), default=20, show_default=True, help="Draws at each level of jitter.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="What the draws begin with.")
def robust(scenario: str, headroom: list[float], **more: Any) -> None:
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

    common.told(robustness, scenario, headroom=max(headroom, default=0.0), **more)


@common.command("Say for which values of what is not stated a claim holds.", "workers", "json", "out")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--all", "every", is_flag=True, help="All scenarios of the catalogue that say what is open.")
def sensitivity(scenarios: tuple[str, ...], every: bool, **more: Any) -> None:
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
    common.told(sweep, scenarios or None, **more)


@common.command("Recompute published figures, and say which are reproduced.", "workers", "json", "junit", "out")
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option("--scale", "factors", multiple=True, metavar="KEY=FACTOR", help="Multiply a figure of the machine.")
def validate(scenarios: tuple[str, ...], factors: tuple[str, ...], junit: Path | None, **more: Any) -> int:
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
    found = common.told(sweep, scenarios or None, scale=dict(catalog.factor(one) for one in factors), **more)
    common.write_junit(found.checks, junit)
    return common.FAILED if found.is_broken else 0

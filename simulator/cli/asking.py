"""The commands that search: how far a field may go, where two rows swap, and which figures limit a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import simulator as hosim
from simulator.cli import common

_SEARCHED = (
    click.option("--at-most", metavar="VALUE", help="The largest value that is tried."),
    click.option("--at-least", metavar="VALUE", help="The least value that is tried."),
    click.option("--multiple-of", metavar="VALUE", help="Try only multiples of this."),
)
_ASKED_BACK = (
    click.option("--of", "field", metavar="PATH", help="What varies: links.*.bandwidth, peak.hbm, workload.batch."),
    *_SEARCHED,
    click.option("--resolution", type=click.IntRange(1, 5), help="Significant digits of the answer. [default: 3]"),
)
_ASKED = (
    click.option("--field", metavar="NAME", help="What is searched: sequence, batch; least: tiers.hbm.capacity."),
    *_SEARCHED,
    click.option("--over", metavar="ROW", help="Hold steps against those of this row."),
    click.option("--slowdown", multiple=True, metavar="RATIO", help="Only with a step at most so many times as long."),
)


def _judged(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code: 0 if a row has an answer; a bound that no plan beats is none."""
    from simulator.report.answers import is_bound

    return common.judged([row for row in rows if not is_bound(row)], none="no row has an answer")


@common.command(
    "Search how far a field may go while a step is as asked.",
    *("scenario", "policy", "set", *_ASKED_BACK, "workers", "json", "out"),
)
@click.option("--such-that", multiple=True, metavar="CONDITION", help="What must hold of a row: 'stall <= 0.1 %'.")
@click.option("--over", metavar="ROW", help="What ratios are of: a row, or compute. [default: the fastest row]")
@click.option("--pareto", is_flag=True, help="Instead, hold peaks, or with --of a cost, against steps.")
def frontier(scenario: str, *, pareto: bool, **more: Any) -> int:
    """Search, for each row of SCENARIO, how far a field may go while conditions hold; and for what no plan beats.

    \b
    Examples:
      hosim frontier llama3_8b_train_910c --policy static --of "links.*.bandwidth" --such-that "stall <= 0.1 %"
      hosim frontier llama3_8b_train_910c --of peak.hbm --such-that "step <= 1.01x"
      hosim frontier mine.yaml --of workload.sequence --such-that "tokens/s >= 3000" --such-that "peak.hbm <= 32 GB"
      hosim frontier llama3_8b_train_910c --pareto --out results/pareto
      hosim frontier long_context_pool --pareto --of "cost/1M tokens"

    Of the machine the least value is searched, of times and of the workload the largest. Where the fields of a
    path differ, all are multiplied by a factor. peak.TIER varies the capacity of a tier.

    A condition is a figure of the table, <= or >=, and an amount with its unit. A share of a time (0.1 %) is of
    the step; a ratio (1.01x) is of the fastest row as documented, or of that of --over.

    The search begins with what the documents say; that what holds goes on to hold with what is easier is tried
    beside each answer. --pareto varies the capacity of the compute tier from the least that any plan needs to what
    all needs at once; --of names a cost in place of the peak. With --out the page also has what limits each
    answer, and the sources of all figures. The exit code is 1 if no row has an answer.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    if pareto:
        given = [f"--{key.replace('_', '-')}" for key in ("such_that", "over", "resolution") if more.pop(key)]
        if given or any(more.pop(key) for key in ("at_most", "at_least", "multiple_of")):
            raise click.UsageError("--pareto asks for all amounts; leave out what is searched")
        return _judged(common.run_and_print(hosim.pareto, scenario, of=more.pop("field"), **more).rows)
    if more["field"] is None:
        raise click.UsageError("say what is searched, such as --of peak.hbm, or --pareto")
    return _judged(common.run_and_print(hosim.frontier, scenario, **more).rows)


@common.command("Search where two policies swap.", "scenario", "policy", "set", *_ASKED_BACK, "json", "out")
def crossover(scenario: str, **more: Any) -> int:
    """Search, for two rows of SCENARIO, over which values of a field which one is faster.

    \b
    Examples:
      hosim crossover llama3_8b_train_910c --policy static --policy recompute --of "links.*.bandwidth"
      hosim crossover mine.yaml --policy static --policy reactive --of workload.batch --at-most 64

    Some values are scanned, by default from an eighth of what the documents say to eight times that; between
    two with different answers the distance is halved. The exit code is 1 if neither row runs anywhere.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    if more["field"] is None:
        raise click.UsageError("say what varies, such as --of 'links.*.bandwidth'")
    return common.judged(common.run_and_print(hosim.crossover, scenario, **more).tables["points"])


@common.command("Search the largest batch, or the longest sequence, that fits.", "scenario", "policy", "set", *_ASKED)
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
    return _judged(common.run_and_print(hosim.largest, scenario, out=None, **more).rows)


@common.command(
    "Search the least memory, or bandwidth, with which a step is hardly longer.", "scenario", "policy", "set", *_ASKED
)
def least(scenario: str, **more: Any) -> int:
    """Search, for each row of SCENARIO, the least value of a field of the machine with which it still fits.

    \b
    Examples:
      hosim least deepseek_v3_nsa_peak --field tiers.hbm.capacity --at-least "60 GB" --at-most "80 GB"
        --multiple-of "100 MB" --over resident --slowdown 1.01x --slowdown 1.25x
      hosim least llama3_8b_train_910c --field "links.*.bandwidth" --at-most "200 GB/s" --slowdown 1.001x

    What is not given here is as the scenario says under `least:`. What rows set for themselves of the field
    does not count. All else is as of hosim largest, with less in place of more.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    return _judged(common.run_and_print(hosim.least, scenario, out=None, **more).rows)


@common.command(
    "Say on which figures of the machine a step hangs.", "scenario", "policy", "set", "workers", "json", "out"
)
def limits(scenario: str, **more: Any) -> int:
    """Run SCENARIO with 10 % more of each figure of its machine, one at a time, with plans made anew.

    \b
    Examples:
      hosim limits llama3_8b_train_910c --policy static
      hosim limits mine.yaml --out results/limits

    One line for each figure that changes a step, the strongest first, with its origin: what the answer
    hangs on, and what of it nobody has measured. The exit code is 1 if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    statuses = common.run_and_print(hosim.limits, scenario, **more).more["statuses"]
    return common.judged([{"status": status, "notes": f"{policy} is refused"} for policy, status in statuses.items()])

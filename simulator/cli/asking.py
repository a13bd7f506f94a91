"""The commands that search: how far a field may go, where two rows swap, and which figures a step depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

import simulator as hosim
from simulator.cli import common
from simulator.cli.documents import show

_SEARCHED = (
    click.option("--at-most", metavar="VALUE", help="The largest value that is tried."),
    click.option("--at-least", metavar="VALUE", help="The least value that is tried."),
    click.option("--multiple-of", metavar="VALUE", help="Try only multiples of this."),
)
_ASKED_BACK = (
    click.option("--of", metavar="PATH", help="Varied field: links.*.bandwidth, peak.hbm, workload.batch."),
    *_SEARCHED,
    click.option("--resolution", type=click.IntRange(1, 5), help="Significant digits of the answer. [default: 3]"),
)


def _judged(rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the exit code: 0 if a row other than a bound has an answer."""
    from simulator.report.answers import is_bound

    return common.judged([row for row in rows if not is_bound(row)], none="no row has an answer")


@common.command(
    "Search how far a field may go while conditions hold.",
    *("scenario", "policy", "set", *_ASKED_BACK, "workers", "json", "out"),
)
@click.option("--such-that", multiple=True, metavar="CONDITION", help="A condition on a row: 'stall <= 0.1 %'.")
@click.option("--over", metavar="ROW", help="Base of ratios: a row, compute, unmoved. [default: the fastest row]")
@click.option("--slowdown", multiple=True, metavar="RATIO", help="Instead, a limit on the step, such as 1.01x, or inf.")
@click.option("--pareto", is_flag=True, help="Instead, trade off peaks, or with --of a cost, against steps.")
def frontier(scenario: str, *, pareto: bool, **more: Any) -> int:
    """Search, for each row of SCENARIO, how far a field may go while conditions hold; and for the lower bounds.

    \b
    Examples:
      hosim frontier llama3_8b_train_910c --policy static --of "links.*.bandwidth" --such-that "stall <= 0.1 %"
      hosim frontier llama3_8b_train_910c --of peak.hbm --such-that "step <= 1.01x"
      hosim frontier mine.yaml --of workload.sequence --such-that "tokens/s >= 3000" --such-that "peak.hbm <= 32 GB"
      hosim frontier long_context_kv_tiers --of workload.sequence --at-most 1048576 --multiple-of 1024
      hosim frontier deepseek_v3_nsa_peak --of tiers.hbm.capacity --at-least "60 GB" --at-most "80 GB"
        --multiple-of "100 MB" --over resident --slowdown 1.01x --slowdown 1.25x
      hosim frontier llama3_8b_train_910c --pareto --out results/pareto
      hosim frontier long_context_pool --pareto --of "cost/1M tokens"

    For fields of the machine and for ranks of programs the search is for the least value; for times and for other
    fields of the workload it is for the largest. If the fields of a path have different values, all are multiplied by
    a factor. peak.TIER varies the capacity of a tier.

    A condition is a figure of the table, <= or >=, and an amount with its unit. A share (0.1 %) of a time is
    relative to the step; a ratio (1.01x) is relative to the fastest row with the documents as they are, or to --over.
    In place of conditions, each --slowdown has an answer of its own: a limit on the step relative to --over (by default
    compute) with the same value of the workload, or with the easiest value of another field. Options default to the
    scenario's key `frontier:`.

    The search starts from the values in the documents. It assumes that conditions which hold also hold with easier
    values, and tries some beside each answer to check. --pareto varies the capacity of the compute tier from the lower
    bound of all plans to the size of all data; --of names a cost in place of the peak. With --out the page also shows
    the limits of each answer, and the sources of all figures. The exit code is 1 if no row has an answer.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    if pareto:
        limiting = ("such_that", "over", "slowdown", "resolution", "at_most", "at_least", "multiple_of")
        given = [f"--{key.replace('_', '-')}" for key in limiting if more.pop(key)]
        if given:
            raise click.UsageError(
                f"--pareto asks for all amounts, found {' and '.join(given)}; leave one of the two out"
            )
        return _judged(common.run_and_print(hosim.pareto, scenario, of=more.pop("of"), **more).rows)
    return _judged(common.run_and_print(hosim.frontier, scenario, **more).rows)


@common.command("Search where two policies swap.", "scenario", "policy", "set", *_ASKED_BACK, "json", "out")
def crossover(scenario: str, **more: Any) -> int:
    """Search, for two rows of SCENARIO, which one is faster over which range of a field.

    \b
    Examples:
      hosim crossover llama3_8b_train_910c --policy static --policy recompute --of "links.*.bandwidth"
      hosim crossover mine.yaml --policy static --policy reactive --of workload.batch --at-most 64

    The search scans some values, by default from an eighth of the documents' value to eight times that, and bisects
    between two with different answers. The exit code is 1 if neither row runs anywhere.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    if more["of"] is None:
        raise click.UsageError("name the field that varies, for example --of 'links.*.bandwidth'")
    return common.judged(common.run_and_print(hosim.crossover, scenario, **more).tables["points"])


@common.command(
    "Show which figures of the machine a step depends on.", "scenario", "policy", "set", "workers", "json", "out"
)
def limits(scenario: str, **more: Any) -> int:
    """Run SCENARIO with 10 % more of each figure of its machine, one at a time, with plans made anew.

    \b
    Examples:
      hosim limits llama3_8b_train_910c --policy static
      hosim limits mine.yaml --out results/limits

    The table has a line for each figure that changes a step, the strongest first, with its origin: so it shows which
    figures the answer depends on, and which of them are assumed. The exit code is 1 if no row ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    statuses = common.run_and_print(hosim.limits, scenario, **more).more["statuses"]
    return common.judged([{"status": status, "notes": f"{policy} is refused"} for policy, status in statuses.items()])


class _ShowOrSearch(click.Group):
    """Takes a workload in place of a command: `hosim layout WORKLOAD` shows its layout."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Put ``show`` before a workload, and before its options."""
        is_named = not args or args[0] in (*self.commands, *context.help_option_names)
        return super().parse_args(context, args if is_named else ["show", *args])


@click.group(cls=_ShowOrSearch, short_help="Show how a workload is spread over ranks; search how it is best.")
def layout() -> None:
    """Show how a workload is spread over its ranks, or search all layouts of a training step for the best.

    `hosim layout WORKLOAD` is short for `hosim layout show WORKLOAD`.

    \b
    Examples:
      hosim layout llama3_8b_train_2x2x2
      hosim layout search layout_llama3_8b_8
    """  # noqa: D301 - click reads the mark


@common.command("Search all layouts on so many devices.", "scenario", "policy", "set", "workers", "json", "out")
@click.option("--devices", type=click.IntRange(1), help="Number of ranks.")
@click.option("--global-batch", type=click.IntRange(1), help="Sequences of all replicas in a step.")
@click.option("--budget", "memory", metavar="SIZE", help="Budget of the compute tier: --set budget=SIZE.")
@click.option("--grid", "over", multiple=True, callback=common.grid, metavar="KEY=VALUES", help="Vary a field.")
@click.option("--replay", type=click.IntRange(1), help="Layouts that are replayed. [default: 8]")
@click.option("--whole", is_flag=True, help="Replay all micro-batches, however many.")
def search(scenario: str, **more: Any) -> int:
    """Search the layouts of the training step of SCENARIO: estimate all, and replay the best under every policy.

    \b
    Examples:
      hosim layout search layout_llama3_70b_128
      hosim layout search omni_modal --devices 16
      hosim layout search mine.yaml --devices 128 --global-batch 512 --budget "58 GB"
        --grid parallel.tensor=2,4,8 --grid batch=1,2 --out results/layouts
      hosim layout search mine.yaml --grid parallel.context=1 --grid parallel.schedule=gpipe,1f1b

    By default all degrees of data, tensor, pipeline, context and expert parallelism are tried that multiply to the
    devices, and all that they allow of sequence and zero_stage; --grid restricts these, or varies other fields
    of the workload. Micro-batches follow from the global batch. Options default to the scenario's key `layout:`.
    Of a job of models that train, the devices are shared out among its programs in all ways.

    A layout is left out without a replay only if it cannot be, or cannot have room (a lower bound), or if others are
    faster by the estimate, which has a column of its own. Where a 1F1B pipeline is long full, two replays of fewer
    micro-batches are continued, unless --whole is said. The exit code is 1 if no layout ran to its end.
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    rows = common.run_and_print(hosim.layout_search, scenario, **more).rows
    return common.judged(rows, none="no layout ran to its end")


for _command in (show, search):
    layout.add_command(_command)

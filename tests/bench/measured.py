"""Published measurements beside what hosim predicts: every printed figure of every record.

    python tests/bench/measured.py
    python tests/bench/measured.py --only olmoe_a2000_decode --jobs 2
    python tests/bench/measured.py --brief
    python tests/bench/measured.py --ratios

A record is a file of ``tests/bench/records`` (`published`): who measured what, what its scenarios assume (committed
before their first run), and a row for each figure that it prints: *predicted*, used to *calibrate* something, or
*missing* with what is missing. Rows that are predicted count, however bad. Scenarios are those of
``scenarios/measured``. ``--brief`` sums up alone, as the page of evidence shows it. ``--ratios`` writes real over
predicted by class of what sets the pace, from which hosim takes the interval beside a time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, get_args

import simulator as hosim
from simulator import catalog
from simulator.metrics import quantile
from simulator.run.grid import sweep

sys.path.insert(0, str(Path(__file__).parent))
import published
from published import Found, Key, Pace, Part, Record

RATIOS = Path(__file__).parents[2] / "scenarios" / "measured" / "ratios.yml"
"""Not ``.yaml``: what ends so in that folder is a scenario."""
HEADER = """\
# Real over predicted, by class of what sets the pace and by record: of times (of a rate, its inverse) and of sizes.
# Written by: python tests/bench/measured.py --ratios
"""
SURE, HELD = 0.8, (0.75, 0.85)
FEWEST_RECORDS, LARGEST_SHARE, LARGEST_ERROR = 4, 0.2, 0.5
AIMS = {"times": 0.15, "memory": 0.07}


Summaries = dict[tuple[str, int | None], Mapping[str, Any]]


def ran(key: Key, policies: Sequence[str]) -> Summaries:
    """Run a scenario with what is set, and sum up its rows: (row, point or None) -> figures."""
    try:
        return _ran(key, policies)
    except hosim.HosimError as error:
        raise SystemExit(f"{key[0]} with {key[1]}: {error}") from None


def _ran(key: Key, policies: Sequence[str]) -> Summaries:
    scenario, changes, is_by_point = key
    loaded = catalog.resolve(scenario, json.loads(changes))
    if loaded.workload.requests:
        served = hosim.serve(loaded, policies=policies)
        rows = _waves(served, loaded.workload.requests.clients) if is_by_point else served.rows
    elif is_by_point:
        rows = sweep(loaded, policies=policies, cache=False, workers=1).rows
    else:
        found = hosim.run(loaded, policies=policies)
        rows = [{**row.summary, "policy": name, **_phases(row)} for name, row in found.items()]
    by_row = {name: [row for row in rows if row["policy"] == name] for name in policies}
    return {(name, n if is_by_point else None): row for name, each in by_row.items() for n, row in enumerate(each)}


def _waves(served: hosim.Serving, clients: Any) -> list[dict[str, Any]]:
    """Sum up requests that came at one time, or the rounds of clients."""
    requests = served.requests
    wave = requests["request"] // clients.number if clients else requests["arrival_ns"]
    return [
        {
            "policy": name,
            "step_ns": each["end_ns"].max() - each["arrival_ns"].min(),
            "ttft_mean_ns": each["ttft_ns"].mean(),
        }
        for (name, _), each in requests.groupby(["policy", wave])
    ]


def _phases(row: hosim.Result) -> dict[str, int]:
    """How long forward, backward, and the update after them take in the last step [ns]."""
    if row.status != "ok" or row.case.loaded.workload.phase != "train":
        return {}
    spans = row.spans
    runs = spans[(spans["kind"] == "compute") & (spans["step"] == spans["step"].max())]
    first, last = (runs.groupby("phase")[key].agg(of) for key, of in (("start_ns", "min"), ("end_ns", "max")))
    times = {f"{phase}_ns": int(last[phase] - first[phase]) for phase in ("forward", "backward") if phase in last}
    if "update" in last:
        times["update_ns"] = max(int(last["update"] - last["backward"]), 0)
    return times


def found_of(all_records: Iterable[Record], jobs: int = 1) -> Iterator[Found]:
    """Predict every row that has parts; rows share runs."""
    rows = [(record, row) for record in all_records for row in record.rows if row.parts]
    wanted: dict[Key, set[str]] = {}
    for _, row in rows:
        for part in row.parts:
            wanted.setdefault(part.key, set()).add(part.row)
    done: dict[Key, Summaries] = {}
    with ProcessPoolExecutor(jobs) as pool:
        runs = (pool.map if jobs > 1 else map)(ran, wanted, [sorted(names) for names in wanted.values()])
        for key, summaries in zip(wanted, runs, strict=True):
            done[key] = summaries
            if sys.stderr.isatty():
                print(f"\r{len(done)} of {len(wanted)} runs ", end="", file=sys.stderr)
    for record, row in rows:
        total = sum(part.times * _figure(f"{record.record}, {row.case}", part, done[part.key]) for part in row.parts)
        yield Found(record, row, row.in_unit(total))


def _figure(where: str, part: Part, summaries: Summaries) -> float:
    summary = summaries.get((part.row, part.point))
    if summary is None:
        raise SystemExit(
            f"{where}: {part.scenario} has no row {part.row!r} with point {part.point}; it has {[*summaries]}"
        )
    if summary.get(part.figure) is None:
        raise SystemExit(f"{where}: {part.scenario}, {part.row}: no {part.figure}; the row is {summary.get('status')}")
    return float(summary[part.figure])


def ratios_of(found: Iterable[Found]) -> dict[str, dict[str, list[float]]]:
    """Class -> record -> real over predicted, three digits."""
    ratios: dict[str, dict[str, list[float]]] = {pace: {} for pace in get_args(Pace)}
    for each in found:
        ratios[each.row.pace].setdefault(each.record.record, []).append(float(f"{each.ratio:.3g}"))
    return {pace: by_record for pace, by_record in ratios.items() if by_record}


def held(ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[tuple[str, int, int]]:
    """Leave each record out: a line, and how many of how many rows lie in the interval of the others of the class."""
    for pace, by_record in ratios.items():
        for name, each in by_record.items():
            others = [other for of, other in by_record.items() if of != name]
            if not others:
                yield f"{pace:17} {name:34} no other record", 0, 0
                continue
            low, high = quantile(others, round((1 - SURE) / 2, 3)), quantile(others, round((1 + SURE) / 2, 3))
            inside = sum(low <= ratio <= high for ratio in each)
            yield f"{pace:17} {name:34} {inside:3} of {len(each):3} in {low:.2f} to {high:.2f}", inside, len(each)


def listed(record: Record, shown: Mapping[tuple[str, str], Found]) -> Iterator[str]:
    """Show a record with all its rows."""

    def as_text(figure: float) -> str:
        return f"{figure:9,.0f}" if figure >= 1000 else f"{figure:9.4g}"

    yield f"\n{record.record}: {record.title}\n  {record.source} ({record.date})"
    for row in record.rows:
        each = shown.get((record.record, row.case))
        line = f"  {row.case:46} {as_text(row.number)} {as_text(each.obtained) if each else '        -'} {row.unit:9}"
        line += f"{each.error:+7.1%}" if each else f"{'':7}"
        line += "" if row.first is None else f"  (first {as_text(row.first).strip()})"
        yield line + (f"  {'' if row.is_ == 'predicted' else row.is_ + ': '}{row.why}" if row.why else "")


def summed(found: Sequence[Found], name: str) -> str:
    """Sum rows up in a line."""
    errors, fast = [abs(each.error) for each in found], sum(each.ratio > 1 for each in found) / len(found)
    return (
        f"{name:34} {len(found):4} rows, median {median(errors):6.1%}, largest {max(errors):6.1%}, {fast:4.0%} too fast"
    )


def by_class(found: Sequence[Found]) -> Iterator[str]:
    """Sum up each class; of its quantiles, each record weighs the same."""
    yield f"\n{'class':17} rows records publishers  median  10 %  50 %  90 %  too fast"
    for pace, ratios in ratios_of(found).items():
        rows = [each for each in found if each.row.pace == pace]
        line = f"{pace:17} {len(rows):4} {len(ratios):7} {len({each.record.publisher for each in rows}):10}"
        quantiles = " ".join(f"{quantile(ratios.values(), share):5.2f}" for share in (0.1, 0.5, 0.9))
        low = sum(each.ratio > 1 for each in rows) / len(rows)
        yield f"{line} {median(abs(each.error) for each in rows):7.1%} {quantiles} {low:8.0%}"


def bars(found: Sequence[Found], share_held: float) -> Iterator[str]:
    """Say of each bar whether it is met, else what is beyond it."""
    ratios, fast = ratios_of(found), sum(each.ratio > 1 for each in found) / len(found)
    sizes = {pace: len(ratios.get(pace, ())) for pace in get_args(Pace)}
    shares: dict[str, float] = {}
    errors: dict[tuple[str, str], list[float]] = {}
    for each in found:
        shares[each.record.publisher] = shares.get(each.record.publisher, 0) + 1 / len(found)
        kind = "memory" if each.row.pace == "memory" else "times"
        errors.setdefault((kind, each.record.record), []).append(abs(each.error))
    off = {key: median(each) for key, each in errors.items() if median(each) > AIMS[key[0]]}
    odd = [each for each in found if abs(each.error) > LARGEST_ERROR and not each.row.why]
    yield from (f"{bar}: {'not met: ' + ', '.join(beyond) if beyond else 'met'}" for bar, beyond in {
        f"each class has {FEWEST_RECORDS} records": [f"{pace} {n}" for pace, n in sizes.items() if n < FEWEST_RECORDS],
        f"no publisher has more than {LARGEST_SHARE:.0%} of the rows":
            [f"{name} {share:.0%}" for name, share in shares.items() if share > LARGEST_SHARE],
        "a record's median is at most 15 % of times": [f"{n} {of:.0%}" for (k, n), of in off.items() if k == "times"],
        "a record's median is at most 7 % of memory": [f"{n} {of:.0%}" for (k, n), of in off.items() if k == "memory"],
        f"no row is off by more than {LARGEST_ERROR:.0%} without a cause that is named":
            [f"{each.record.record} ({each.row.case})" for each in odd],
        "at most two thirds of the rows are on one side": [] if 1 / 3 <= fast <= 2 / 3 else [f"{fast:.0%} too fast"],
        f"an interval of {SURE:.0%} holds {HELD[0]:.0%} to {HELD[1]:.0%} of the rows of records left out":
            [] if HELD[0] <= share_held <= HELD[1] else [f"{share_held:.0%}"],
    }.items())  # fmt: skip


def write(ratios: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    """Write ``ratios.yml``."""
    lines = [HEADER]
    for pace, by_record in ratios.items():
        each = (f"  {name}: [{', '.join(f'{ratio:g}' for ratio in own)}]\n" for name, own in by_record.items())
        lines += [f"{pace}:\n", *each]
    RATIOS.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Print every row, and the errors by class, by record and over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=(), metavar="RECORD", help="these records")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    parser.add_argument("--brief", action="store_true", help="sums over classes and records, without their rows")
    parser.add_argument("--ratios", action="store_true", help="write what the intervals are made of")
    asked = parser.parse_args()
    all_records = published.records(asked.only)
    shown = {(each.record.record, each.row.case): each for each in found_of(all_records, asked.jobs)}
    found = [each for each in shown.values() if each.row.is_ == "predicted"]
    for record in () if asked.brief else all_records:
        print(*listed(record, shown), sep="\n")
    kinds = [row.is_ for record in all_records for row in record.rows]
    print(f"\n{len(kinds)} printed figures of {len(all_records)} records: {kinds.count('predicted')} predicted, "
          f"{kinds.count('calibrates')} used to calibrate, {kinds.count('missing')} not expressible")  # fmt: skip
    if not found:
        return
    print(*by_class(found), "", sep="\n")
    for record in all_records:
        if rows := [each for each in found if each.record is record]:
            print(summed(rows, record.record))
    if not asked.only:
        told, inside, of = zip(*held(ratios_of(found)), strict=True)
        share = sum(inside) / max(sum(of), 1)
        each = () if asked.brief else told
        print("\nrows in the interval of the other records of their class:", *each, sep="\n")
        print(f"in all {sum(inside)} of {sum(of)}: {share:.0%}\n", *bars(found, share), sep="\n")
    print()
    for name, rows in (("times", [each for each in found if each.row.pace != "memory"]),
                       ("memory", [each for each in found if each.row.pace == "memory"]), ("all", found)):  # fmt: skip
        if rows:
            print(summed(rows, name))
    if asked.ratios and not asked.only:
        write(ratios_of(found))


if __name__ == "__main__":
    main()

"""How the search for fixed offsets grows with the number of places, and what it spans and takes.

    python tests/bench/offsets.py

Places are made up: `nested`, as of a training step in which what forward makes is used in backward, and `drawn`, with
sizes and lengths at random. Times are processor seconds of this process; the exponent is the slope of log time over log
places between the smallest and the largest number. `spread` is given 1.3 times what is live at once.
It ends with 1 if an exponent is above its bar.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import bars
import numpy as np

from simulator.offsets import Tenancies, spread, tight
from simulator.trace import Ints

PLACES = (1_000, 4_000, 16_000)
MOST = {"spread nested": 1.15, "spread drawn": 1.15}
"""The exponent of each."""


def nested(count: int) -> Tenancies:
    """Half of the places last from forward to backward, half are short."""
    draw, half = random.Random(0), count // 2
    sizes = [draw.randint(1, 50) for _ in range(16)]
    long = [(i, sizes[i % 16], i, count - i) for i in range(half)]
    return table([*long, *((half + i, sizes[i * 7 % 16], i, i + draw.randint(0, 4)) for i in range(half))])


def drawn(count: int) -> Tenancies:
    """Places of 1 to 100 bytes that last about 20 steps."""
    draw = random.Random(0)
    starts = [draw.randrange(count) for _ in range(count)]
    ends = [min(count, start + int(draw.expovariate(1 / 20))) for start in starts]
    return table([(i, draw.randint(1, 100), *stay) for i, stay in enumerate(zip(starts, ends, strict=True))])


def table(rows: list[tuple[int, int, int, int]]) -> Tenancies:
    """Places of a lap that has an action more than there are places."""
    return Tenancies(np.array(rows).T, len(rows) + 1)


def spread_out(places: Tenancies, live: int) -> Ints:
    """In a span that leaves room; in more if that does not suffice."""
    chosen = spread(places, live * 13 // 10)
    return spread(places, live * 2) if chosen is None else chosen


def seconds(search: Callable[[Tenancies, int], Ints], places: Tenancies) -> tuple[float, float]:
    """How long a search takes, the least of three, and its span over what is live at once."""
    live, took = int(places.live_bytes().max()), []
    for _ in range(3):
        began = time.process_time()
        chosen = search(places, live)
        took.append(time.process_time() - began)
    return min(took), places.span_bytes(chosen) / live


def main() -> int:
    """Print a line for each; 1 if an exponent is above its bar."""
    slopes = {}
    tried = {"spread nested": (spread_out, nested), "spread drawn": (spread_out, drawn), "tight drawn": (tight, drawn)}
    for label, (search, kind) in tried.items():
        found = [seconds(search, kind(count)) for count in PLACES]
        slopes[label] = math.log(found[-1][0] / found[0][0]) / math.log(PLACES[-1] / PLACES[0])
        told = ", ".join(f"{n}: {s:.3f} s, span {over:.3f}" for n, (s, over) in zip(PLACES, found, strict=True))
        must = f" (must: {MOST[label]})" if label in MOST else ""
        print(f"{label}: {told}; exponent {slopes[label]:.2f}{must}")
    misses = bars.missed(slopes, most=MOST)
    print(bars.told(misses))
    return bool(misses)


if __name__ == "__main__":
    sys.exit(main())

"""How long searches of layouts take, in processor time, which other programs of a shared machine lengthen least.

    python tests/bench/layouts.py

Two cores are to need two minutes for LLaMA3-70B on 128 devices, and five for DeepSeek-V3 on 512.
"""

from __future__ import annotations

import resource
import sys

import bars

import simulator as hosim

CORES, MOST_S = 2, {"layout_llama3_70b_128": 120, "layout_deepseek_v3_512": 300}


def processor_s() -> float:
    """Return the processor time of this process, and of its children that ended [s]."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> int:
    """Run each search, and say how long it took."""
    found = dict[str, float]()
    for name in MOST_S:
        before = processor_s()
        searched = hosim.layout_search(name, workers=CORES)
        found[name] = (processor_s() - before) / CORES
        print(f"{name}: {len(searched.tables['layouts']):,} layouts, {found[name]:.3g} s on {CORES} cores")
    missed = bars.missed(found, most=MOST_S)
    print(bars.told(missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

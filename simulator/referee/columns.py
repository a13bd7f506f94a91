"""The columns that laws compare."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""No row, no step, no time."""


class Moved(NamedTuple):
    """What went over the links, or the ports, of one name: whose, how much, from when to when."""

    rank: Ints
    size_bytes: Ints
    start_ns: Ints
    end_ns: Ints

"""Columns of numbers: rows that belong together are a group, of one key or of several."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NONE = -1
"""No row, no step, no time."""


def firsts(*keys: Ints) -> Bools:
    """Whether each row is the first of its group; groups are contiguous."""
    found: Bools = np.arange(len(keys[0])) == 0
    for key in keys:
        found[1:] |= key[1:] != key[:-1]
    return found


def lasts(*keys: Ints) -> Bools:
    """Whether each row is the last of its group; groups are contiguous."""
    return np.append(firsts(*keys)[1:], True)[: len(keys[0])]


def at_first(is_first: Bools, values: Ints) -> Ints:
    """By row, the value of the first row of its group; groups are contiguous."""
    return values[np.maximum.accumulate(np.where(is_first, np.arange(len(values)), 0))]


def running(group: Ints, change: Ints) -> Ints:
    """Running sums within groups, in the order of the rows."""
    order = np.argsort(group, kind="stable")
    total = np.cumsum(change[order])
    found = np.empty(len(order), np.int64)
    found[order] = total - at_first(firsts(group[order]), total - change[order])
    return found


def turns(group: Ints) -> Ints:
    """The position of each row among those of its group, from 0."""
    return running(group, np.ones(len(group), np.int64)) - 1


def busy(key: Ints, start: Ints, end: Ints, *, joins: bool) -> tuple[Ints, Ints, Ints]:
    """Find the stretches in which something of a key is under way without a pause.

    Parameters
    ----------
    key, start, end
        What is under way, from when to when.
    joins
        Whether what starts where all else ends goes on with the stretch.

    Returns
    -------
    (array, array, array)
        The rows by key and time; positions in these at which a stretch begins; and where it ends.
    """
    order = np.lexsort((end, start, key))
    key, start, end = key[order], start[order], end[order]
    stride = int(end.max(initial=0)) + 2
    reached = np.maximum.accumulate(key * stride + end)
    is_new = np.append(True, (key * stride + start)[1:] + (not joins) > reached[:-1])[: len(key)]
    return order, np.flatnonzero(is_new), (reached - key * stride)[np.append(is_new[1:], True)[: len(key)]]

"""Files that went wrong: in their structure, in their values, or in their bytes."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from random import Random
from typing import Any

HOSTILE = [
    *(None, True, False, -1, 0, 1, 2, 3, 1001, 10**6, 2**31, 2**53 + 1, 2**62, 2**62 + 1, 2**63, 2**64, 10**400),
    *(0.5, -0.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf")),
    *("", " ", "nan", ".nan", "inf", "-inf", "1e999", "1_000", "0x10", "\u0661", "9" * 5000, "ab" * 100_000),
    *("64 GB", "1e999 GB/s", "1e-999 B", "0 B", "-1 us", "440 Gb/s", "inf B", "0x", "1e300x", "50 %", "1 ns"),
    *("\x00", "a\x00b", "\x1b[31m", "\x07", "a\nb", "\u202e", "\ud800", "\ufeff", "=1+1", "@x", "-1+1", "<b>"),
    *("*", "*.*", "[", "[!", "links.*.bandwidth", "workload.steps", "..", ".", "a." * 400, "~", "<<", "&a"),
    *("/dev/zero", "/dev/stdin", "/", "../" * 40 + "etc/passwd", "no such", "graph.jsonl", "x.gz", "x" * 300 + ".yaml"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": {"c": 1}}}, [1] * 3000, {str(n): n for n in range(1500)}),
]  # fmt: skip
"""Values that some field, somewhere, will not like."""

SNIPPETS = [
    *(b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\r\n", b"\n\n\n", b"\t", b'"', b"'", b"\\", b"\\ud800"),
    *(b"{" * 3000, b"[" * 3000, b"- " * 3000, b"? " * 3000, b"}" * 9, b"]", b",", b",,,", b":", b": ", b"\x1b[2J"),
    *(b"\n---\n", b"\n...\n", b"&a [*a, *a]", b"*a", b"<<: *a", b"!!python/object/apply:os.system [x]", b"%YAML 9.9"),
    *(b"|", b">", b"null", b"NaN", b"9" * 5000, b"-", b"1e999", b"e9", b".", b"0", b"\n" * 5000, b" " * 5000),
    *("\u2028\u0663".encode(), b"a" * 200_000),
]  # fmt: skip
"""Bytes that some reader, somewhere, will not like."""


def changed(given: Any, random: Random) -> Any:
    """One or two values of a tree put elsewhere, left out, doubled, renamed, or made hostile."""
    tree = copy.deepcopy(given)
    for _ in range(random.choice((1, 1, 2))):
        at = random.choice([*_spots(tree)] or [None])
        if at is None:
            return _hostile(random)
        holder, key = at
        other, there = random.choice([*_spots(tree)])
        how = random.randrange(8)
        if how == 0:
            del holder[key]
        elif how == 1:
            holder[key] = copy.deepcopy(other[there])
        elif how == 2 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif how == 2:
            holder[str(random.choice(HOSTILE))] = holder.pop(key)
        elif how in (3, 4) and type(holder[key]) in (int, float):
            holder[key] = holder[key] * random.choice((-1, 0, 2, 1000, 10**9, 0.5)) + random.choice((-1, 0, 1))
        else:
            holder[key] = _hostile(random)
    return tree


def _hostile(random: Random) -> Any:
    return copy.deepcopy(random.choice(HOSTILE))


def _spots(tree: Any) -> Iterator[tuple[Any, Any]]:
    keys: Any = tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _spots(tree[key])


def lines(records: list[Any], random: Random) -> bytes:
    """JSON lines of which one or two are changed, doubled, or somewhere else."""
    records = copy.copy(records)
    for _ in range(random.choice((1, 1, 2))):
        at, to = random.randrange(len(records)), random.randrange(len(records))
        how = random.randrange(6)
        if how == 0:
            records.insert(to, records[at])
        elif how == 1:
            records.insert(to, records.pop(at))
        else:
            records[at] = changed(records[at], random)
    return "".join(f"{json.dumps(record)}\n" for record in records).encode()


def fields(text: str, random: Random) -> bytes:
    """Comma-separated text of which one or two fields are hostile, doubled, or left out."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(random.choice((1, 1, 2))):
        row = random.choice(rows)
        at = random.randrange(len(row)) if row else 0
        row[at : at + 1] = random.choice((row[at : at + 1] * 2, [], [str(random.choice(HOSTILE))]))
    return "".join(f"{','.join(row)}\n" for row in rows).encode(errors="surrogatepass")


def broken(data: bytes, random: Random) -> bytes:
    """Bytes of which a few are others, are missing, or have more between them."""
    found = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(found) + 1)
        to = at + random.choice((0, 1, 1, 2, 10, len(found)))
        found[at:to] = random.choice((b"", random.randbytes(1), random.choice(SNIPPETS), bytes(found[at:to]) * 2))
    return bytes(found)


def packed(data: bytes, random: Random) -> bytes:
    """The bytes packed, and then perhaps broken."""
    found = gzip.compress(data, mtime=0)
    return broken(found, random) if random.random() < 0.5 else found

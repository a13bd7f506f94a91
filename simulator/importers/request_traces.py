"""Published traces of requests, with arrival times and token counts; for `hosim serve`.

========  ============================================================================================================
Mooncake  JSON lines: ``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}``; an id names a
          block of the prompt, with all that is before it (github.com/kvcache-ai/Mooncake)
tables    CSV of Azure, BurstGPT, Vidur or hosim: see `simulator.formats.tables_csv`
ShareGPT  JSON, or JSON lines: ``{"conversations": [{"from": "human", "value": text}, {"from": "gpt", ...}, ...]}``, or
          ``messages`` of ``{"role": "user", "content": text}`` and so on; it has neither times nor tokens, so both are
          derived
Bailian   as Mooncake, with times in seconds and blocks of 16 tokens; its records have a ``chat_id``
          (github.com/alibaba-edu/qwen-bailian-usagetraces-anon)
lengths   JSON, or JSON lines, as benchmarks have them: ``{"prompt_len": n, "output_len": n}``, or by another pair of
          `_LENGTHS`; with a time by a name of `_TIMES`, or else times are derived
========  ============================================================================================================
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulator import catalog, inputs
from simulator.errors import insist
from simulator.formats import jsonl, read_requests, requests_csv, tables_csv
from simulator.importers.imported import FACTS, Imported, named
from simulator.importers.recordings import objects, records_of, whole
from simulator.units import FieldError, require
from simulator.workload import Arriving, Dtypes, Request, Requests, Workload
from simulator.workload.requests import MOST

# Most tokens of a prompt or an answer, more than any model's context has; latest arrival [ms], after 30 years; most
# bytes of a list in JSON, whose text is in memory as a whole: the published file of ShareGPT has 673 million.
_MOST_TOKENS, _MOST_MS, _MOST_BYTES, _SEED = 10_000_000, 10**12, 800_000_000, 0
_EMPTY = "requests without a prompt or an output token"
Records = Iterable[tuple[int, dict[str, Any]]]
"""Line numbers, or positions from 1, and the objects there."""
Reader = Callable[[dict[str, Any]], tuple[Request | None, int]]
"""Function that makes a request from a record, if it holds one, and counts the later turns of its conversation."""
_NS_PER_MS, _NS_PER_S, _BLOCK = 10**6, 10**9, 16  # tokens per block of the KV cache: vLLM's default
_UNITS: dict[str, int] = {"ms": _NS_PER_MS, "s": _NS_PER_S}
# Data types of the model's workload that also apply to requests.
_INFERENCE = ("compute", "weights", "experts", "others", "kv_cache")


def read_request_trace(  # noqa: PLR0913 - options of the command
    source: str | Path,
    *,
    model: str = "llama31_8b_chat",
    count: int | None = None,
    slower: float = 1.0,
    hash_block: int | None = None,
    unit: Literal["ms", "s"] | None = None,
    rate: float = 1.0,
    characters: float = 4.0,
) -> Imported:
    """Read a trace of requests, and make a workload that serves them.

    Parameters
    ----------
    source
        A trace of Mooncake (JSON lines), Azure, BurstGPT or Vidur (CSV); conversations of ShareGPT, or lengths (JSON).
    model
        The workload whose model serves the requests, on its ranks if it serves requests itself: a name in the
        catalogue, or a path, such as one that `hosim import hf` wrote.
    count
        Number of requests to take, the first ones by arrival; default: as many as a run serves.
    slower
        Factor that stretches the time between arrivals, such as 8 to serve with one of a cluster's eight servers.
    hash_block
        Tokens of a prompt that each id in ``hash_ids`` stands for; default: 512, as in Mooncake, and 16 in Bailian.
    unit
        What a ``timestamp`` of JSON counts; default: ms, as in Mooncake, and s in Bailian.
    rate
        With ShareGPT and lengths without times: requests per second, on average; they arrive at random.
    characters
        With ShareGPT: characters per token.

    Raises
    ------
    ConfigError
        If the file or an option is wrong; the message names the line.
    """
    path = Path(source)
    given = {"count": count, "slower": slower, "hash-block": hash_block, "rate": rate, "characters": characters}
    for name, value in given.items():
        insist(value is None or 0 < value < _MOST_MS, f"--{name}", "it is above 0, and no huge number", repr(value))
    most, block, derived, dropped = min(count or MOST, MOST), _BLOCK, list[str](), Counter[str]()
    if _first_character(path) in (b"{", b"["):
        trace, block = _of_json(path, most, given | {"unit": unit}, derived, dropped)
    else:
        trace = read_requests(path, most)
        dropped[_EMPTY] += trace.unanswered
    requests = [request._replace(arrival_ns=round(request.arrival_ns * slower)) for request in trace.requests]
    if slower != 1:
        derived.append(f"Times between arrivals are {slower:g} times as long as in the file (--slower).")
    if trace.late:
        derived.append(f"{trace.late:,} requests stood after later ones; all are now in order of arrival.")
    if trace.further:
        derived.append(f"The first {most:,} requests by arrival are taken (--count; a run serves at most {MOST:,}).")
        dropped["further requests"] += trace.further
    derived.append(f"The model is that of {model} (--model); batch limits are hosim's defaults.")
    files: dict[str, bytes | Workload] = {".yaml": _workload(path, model, block), ".csv": requests_csv(requests)}
    taken, seconds = len(requests), requests[-1].arrival_ns / _NS_PER_S
    prompt, output = (sum(map(attrgetter(side), requests)) / taken for side in ("prompt", "output"))
    mean = f"{prompt:,.0f} of a prompt and {output:,.0f} of an answer, on average"
    kept = {"requests": f"{taken:,} within {seconds:,.{0 if seconds >= 1 else 2}f} s", "tokens": mean}
    return Imported(files, kept, tuple(derived), +dropped)


def _of_json(
    path: Path, most: int, given: Mapping[str, Any], derived: list[str], dropped: Counter[str]
) -> tuple[Arriving, int]:
    """Read requests from JSON, or JSON lines, as options say; return them, and the tokens of a block of theirs."""
    where, is_list = inputs.shown(path), _first_character(path) == b"["
    listed = objects(records_of(path, _MOST_BYTES), where, "requests are objects") if is_list else ()
    records = enumerate(listed, 1) if is_list else iter(jsonl.objects(path))
    head = list(islice(records, 1))
    keys, rate, characters = {key for _, record in head for key in record}, given["rate"], given["characters"]
    usual_size, usual_unit = (16, "s") if "chat_id" in keys else (512, "ms")
    size, unit = given["hash-block"] or usual_size, given["unit"] or usual_unit
    time = next((name for name in _TIMES if name in keys), "")
    timing, numbers = (time, _TIMES.get(time) or _UNITS[unit]), tables_csv.Numbers()
    read = partial(_request, time=timing, size=size, numbers=numbers, characters=characters)
    trace = Arriving.first(_requests(path, chain(head, records), read, dropped), most)
    must = "a trace has requests: input_length and output_length, or a question (human) and its answer (gpt)"
    insist(trace.requests, where, must, "none", "choose another file")
    derived += [f"A timestamp counts {unit} (--unit)."] * (time == "timestamp")
    if "hash_ids" in keys:
        derived.append(f"An id of hash_ids, and a block of the KV cache, are {size:,} tokens (--hash-block).")
    if not time:
        gaps = np.random.default_rng(_SEED).standard_exponential(len(trace.requests)) * _NS_PER_S / rate
        dated = zip(trace.requests, np.cumsum(gaps) - gaps[0], strict=True)
        trace = trace._replace(requests=[request._replace(arrival_ns=round(time_ns)) for request, time_ns in dated])
        derived.append(f"Requests come at random, {rate:g} in a second on average (--rate).")
        if {"conversations", "messages"} & keys:
            derived.append(f"A token of a conversation is {characters:g} characters (--characters).")
    return trace, size if "hash_ids" in keys else _BLOCK


def _first_character(path: Path) -> bytes:
    """Return the first character that is not blank."""
    with inputs.opened(path) as file:
        head = inputs.unmarked(file.read(1 << 16), path).lstrip()
    insist(head, inputs.shown(path), "a trace of requests has some", "an empty file", "choose another file")
    return head[:1]


def _workload(path: Path, name: str, block: int) -> Workload:
    """Make the workload: the model of another workload, and the requests file."""
    base = catalog.read_workload(name)
    must, do = "requests are served by a decoder", "name a workload with a model, such as llama31_8b_chat"
    insist(base.decoder, f"--model {name}", must, "a recommender" if base.model else "a graph", do)
    about: dict[str, Any] = {"model": base.model, "phase": "requests", "requests": Requests(file=".csv", block=block)}
    if base.phase == "requests" and "parallel" in base.model_fields_set:
        about["parallel"] = base.parallel
    for table in ("sources", "assumed"):
        origins = getattr(base, table).items()
        about[table] = {key: why for key, why in origins if key.partition(".")[0] in {"dtypes", *about} - {"requests"}}
    if types := {key: getattr(base.dtypes, key) for key in _INFERENCE if key in base.dtypes.model_fields_set}:
        about["dtypes"] = Dtypes(**types)
    title = f"The requests of {path.name}, served by the model of {base.name}"
    return Workload(name=named(path.name.partition(".")[0]), title=title, **about)


_LENGTHS, _TIMES = FACTS["requests"]["lengths"], FACTS["requests"]["times"]
_OF_LENGTHS = {name for names in _LENGTHS for name in names}
_KEYS = {"hash_ids", "chat_id", "conversations", "messages", *_TIMES, *_OF_LENGTHS}


def _requests(path: Path, records: Records, read: Reader, dropped: Counter[str]) -> Iterator[Request]:
    """Turn records into requests; drop those without a prompt or an answer."""
    for position, record in records:
        try:
            request, later = read(record)
        except FieldError as error:
            raise error.at(", ".join((f"{inputs.shown(path)}:{position}", *error.path))) from None
        dropped.update(f"key {key!r}" for key in record.keys() - _KEYS)
        if request is None:
            dropped["conversations without question and answer"] += 1
        elif not (request.prompt and request.output):
            dropped[_EMPTY] += 1
        else:
            dropped["later turns of conversations"] += later
            yield request


def _number(record: dict[str, Any], key: str, most: int) -> Any:
    value: Any = record.get(key)
    is_number = type(value) in (int, float) and 0 <= value <= most
    require(is_number, f"{key} is a number from 0 to {most:,}", repr(value) if key in record else "none", key)
    return value


def _tokens(record: dict[str, Any], key: str) -> int:
    value = _number(record, key, _MOST_TOKENS)
    require(value == int(value), f"{key} is a whole number", repr(value), key)
    return int(value)


class _Blocks(Sequence[tuple[int, int]]):
    """All blocks of a prompt but the last, as in `Request.above`, at 8 B each: a trace lists millions."""

    def __init__(self, ids: array[int], size: int) -> None:
        self._ids, self._size = ids, size

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, position: Any) -> Any:
        return self._ids[position], (position + 1) * self._size


def _request(
    record: dict[str, Any], time: tuple[str, int], size: int, numbers: tables_csv.Numbers, characters: float
) -> tuple[Request | None, int]:
    """Read a request whose prompt may name its blocks; `numbers` replace ids that are strings, huge or negative.

    The ids serve as prefix numbers and become names in the table that is written. There a name stands for a block and
    all blocks before it, as an id does here, so the tree is built only when the table is read.
    """
    if not (time[0] or record.keys() & _OF_LENGTHS):
        return _spoken(record, characters)
    arrival_ns = round(_number(record, time[0], _MOST_MS * _NS_PER_MS // time[1]) * time[1]) if time[0] else 0
    names = max(_LENGTHS, key=lambda names: len(record.keys() & {*names}))  # those that fit best
    prompt, output = (_tokens(record, name) for name in names)
    ids = record.get("hash_ids", [])
    is_list = type(ids) is list and all(type(block_id) in (int, str) for block_id in ids)
    require(is_list, "hash_ids is a list of numbers, or of names", repr(ids)[:60], "hash_ids")
    must, found = f"hash_ids names each block of {size:,} tokens", f"{len(ids):,} names for {prompt:,} tokens"
    require(len(ids) in (0, -(-prompt // size)), must, found, "hash_ids", do="state the tokens of an id: --hash-block")
    if not ids:
        return Request(arrival_ns, prompt, output), 0
    blocks = array("q", [block_id if whole(block_id) == block_id else ~numbers[block_id] for block_id in ids])
    return Request(arrival_ns, prompt, output, blocks.pop(), prompt, _Blocks(blocks, size)), 0


_ASKS, _ANSWERS = ("human", "user", "system"), ("gpt", "assistant")


def _spoken(record: dict[str, Any], characters: float) -> tuple[Request | None, int]:
    """Return a conversation's first question and its answer as a request; and the number of later turns."""
    turns = record.get("conversations", record.get("messages"))
    turns = [turn for turn in turns if type(turn) is dict] if type(turns) is list else []
    spoken = [(turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))) for turn in turns]
    first = next((index for index, (speaker, _) in enumerate(spoken) if speaker not in _ASKS), 0)
    texts = [text for _, text in spoken[: first + 1] if type(text) is str and text]
    if not first or len(texts) <= first or spoken[first][0] not in _ANSWERS:
        return None, 0
    prompt, output = (max(1, round(len(text) / characters)) for text in ("".join(texts[:-1]), texts[-1]))
    return Request(0, prompt, output), len(spoken) - first - 1

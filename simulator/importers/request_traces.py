"""Traces of requests: who came when, with how many tokens, as services publish it; for `hosim serve`.

========  ============================================================================================================
Mooncake  JSON lines: ``{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}``; an id names a
          block of the prompt, with all that is before it (github.com/kvcache-ai/Mooncake)
tables    CSV of Azure, BurstGPT or hosim: see `simulator.formats.tables_csv`
ShareGPT  JSON: a list of ``{"conversations": [{"from": "human", "value": text}, {"from": "gpt", ...}, ...]}``; it has
          neither times nor tokens, so both are derived
========  ============================================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator import catalog, inputs
from simulator.errors import ConfigError, insist
from simulator.formats import jsonl, read_requests, requests_csv
from simulator.importers.imported import Imported, named
from simulator.importers.recordings import json_of
from simulator.inputs import shown
from simulator.units import FieldError, require
from simulator.workload import Arriving, DecoderModel, Dtypes, Request, Requests, Workload
from simulator.workload.requests import MOST

_MOST_TOKENS, _MOST_MS, _SEED = 10_000_000, 10**12, 0
_NS_PER_MS, _NS_PER_S = 10**6, 10**9
_INFERENCE = ("compute", "weights", "experts", "kv_cache")
"""Types of a workload that are for requests, too."""


def read_request_trace(  # noqa: PLR0913 - options of the command
    source: str | Path,
    *,
    model: str = "llama31_8b_chat",
    count: int | None = None,
    slower: float = 1.0,
    hash_block: int = 512,
    rate: float = 1.0,
    characters: float = 4.0,
) -> Imported:
    """Read a trace of requests, and make a workload that serves them.

    Parameters
    ----------
    source
        A trace of Mooncake (JSON lines), Azure or BurstGPT (CSV), or conversations of ShareGPT (JSON).
    model
        The workload whose model serves them: a name in the catalogue, or a path.
    count
        How many requests are taken, the first ones by arrival; default: as many as a run serves.
    slower
        So many times as much time is between arrivals, as where one server has its share of a cluster's requests.
    hash_block
        Of Mooncake: how many tokens of a prompt an id stands for.
    rate
        Of ShareGPT: how many requests come in a second, at random.
    characters
        Of ShareGPT: how many characters are a token.

    Raises
    ------
    ConfigError
        If the file or an option is wrong; the message names the line.
    """
    path = Path(source)
    given = {"count": count, "slower": slower, "hash-block": hash_block, "rate": rate, "characters": characters}
    for name, value in given.items():
        insist(value is None or 0 < value < _MOST_MS, f"--{name}", "it is above 0, and no huge number", repr(value))
    most, start = min(count or MOST, MOST), _start(path)
    if start == b"{":
        trace = _mooncake(path, most, hash_block)
    elif start == b"[":
        trace = _sharegpt(path, most, rate, characters)
    else:
        come = read_requests(path, most)
        trace = _Trace(come, [], Counter({"requests without an output token": come.unanswered}))
    come, derived, dropped, block = trace
    requests = [one._replace(arrival_ns=round(one.arrival_ns * slower)) for one in come.requests]
    if slower != 1:
        derived.append(f"Times between arrivals are {slower:g} times as long as in the file (--slower).")
    if come.late:
        derived.append(f"{come.late:,} requests stood behind ones that came later; they are in the order of arrival.")
    if come.further:
        derived.append(f"The first {most:,} requests by arrival are taken (--count; a run serves at most {MOST:,}).")
        dropped["further requests"] += come.further
    derived.append(f"The model is that of {model} (--model); how many run together is what hosim serves by default.")
    files: dict[str, bytes | Workload] = {".yaml": _served(path, model, block), ".csv": requests_csv(requests)}
    return Imported(files, _kept(requests), tuple(derived), {what: often for what, often in dropped.items() if often})


class _Trace(NamedTuple):
    """What a file holds: requests, what was derived, what was dropped, and the tokens of a block of their prefixes."""

    come: Arriving
    derived: list[str]
    dropped: Counter[str]
    block: int = 16


def _start(path: Path) -> bytes:
    """The first character that is no blank."""
    for block in inputs.blocks(path):
        if text := b"".join(block).lstrip():
            return text[:1]
    raise ConfigError(shown(path), "a trace of requests has some", "an empty file", "choose another file")


def _kept(requests: list[Request]) -> dict[str, str]:
    prompts, outputs = sum(one.prompt for one in requests), sum(one.output for one in requests)
    seen, known = set[int](), 0
    for one in requests:
        ends = ((0, 0), *one.above, (one.prefix, one.prefix_tokens))
        parts = {node: end - before for (_, before), (node, end) in pairwise(ends) if end > before}
        known += sum(size for node, size in parts.items() if node in seen)
        seen |= parts.keys()
    number, seconds = len(requests), requests[-1].arrival_ns / _NS_PER_S
    about = {"requests": f"{number:,} within {seconds:,.0f} s"}
    about["tokens"] = f"{prompts / number:,.0f} of a prompt and {outputs / number:,.0f} of an answer, on average"
    return about | ({"prefixes": f"{100 * known / prompts:.0f} % of prompt tokens came before"} if seen else {})


def _served(path: Path, name: str, block: int) -> Workload:
    """The workload: the model of another one, and the requests beside it."""
    base = catalog.read_workload(name)
    model, stem = base.model, named(path.name.partition(".")[0])
    must, do = "requests are served by a decoder", "name a workload of the family decoder, such as llama31_8b_chat"
    if not isinstance(model, DecoderModel):
        raise ConfigError(f"--model {name}", must, "another model", do)
    requests = Requests(file=".csv", block=block)
    try:
        requests.check(model)
    except FieldError as error:
        raise ConfigError(f"--model {name}", error.must, error.found, error.do) from None
    origins = {
        table: {key: why for key, why in getattr(base, table).items() if key.partition(".")[0] in ("model", "dtypes")}
        for table in ("sources", "assumed")
    }
    types = {key: getattr(base.dtypes, key) for key in _INFERENCE if key in base.dtypes.model_fields_set}
    title = f"The requests of {path.name}, served by the model of {base.name}"
    about: dict[str, Any] = {"dtypes": Dtypes(**types)} if types else {}
    return Workload(name=stem, title=title, model=model, phase="requests", requests=requests, **about, **origins)


def _mooncake(path: Path, most: int, hash_block: int) -> _Trace:
    """Read requests whose prompts name their blocks."""
    dropped, nodes = Counter[str](), dict[tuple[int, int, object], int]()

    def lines() -> Iterator[Request]:
        for number, record in jsonl.objects(path):
            try:
                request = _of_blocks(record, hash_block, nodes)
            except FieldError as error:
                where = ", ".join((f"{shown(path)}:{number}", *error.at))
                raise ConfigError(where, error.must, error.found, error.do or "correct it") from None
            dropped.update(f"key {key!r}" for key in record.keys() - _KEYS)
            dropped["requests without an output token"] += not request.output
            if request.output:
                yield request

    come = Arriving.first(lines(), most)
    insist(come.requests, shown(path), "a trace of requests has some that add a token", "none", "choose another file")
    derived = [f"An id of hash_ids is {hash_block:,} tokens (--hash-block); blocks of the KV cache are as large."]
    return _Trace(come, derived, dropped, hash_block)


_KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}


def _of_blocks(record: dict[str, Any], size: int, nodes: dict[tuple[int, int, object], int]) -> Request:
    def number(key: str, least: int, most: int) -> Any:
        value = record.get(key)
        holds = type(value) in (int, float) and least <= float(value or 0) <= most
        require(holds, f"{key} is a number from {least} to {most:,}", repr(value) if key in record else "none", key)
        return value

    at_ns = round(number("timestamp", 0, _MOST_MS) * _NS_PER_MS)
    output = int(number("output_length", 0, _MOST_TOKENS))
    prompt = int(number("input_length", 1 if output else 0, _MOST_TOKENS))
    ids = record.get("hash_ids", [])
    is_list = type(ids) is list and all(type(one) in (int, str) for one in ids)
    require(is_list, "hash_ids is a list of numbers, or of names", repr(ids)[:60], "hash_ids")
    must, found = f"hash_ids names each block of {size:,} tokens", f"{len(ids):,} names for {prompt:,} tokens"
    require(len(ids) in (0, -(-prompt // size)), must, found, "hash_ids", do="see --hash-block")
    chain, node = list[tuple[int, int]](), -1
    for end, name in enumerate(ids, 1):
        node = nodes.setdefault((node, end, name), len(nodes))
        chain.append((node, min(end * size, prompt)))
    if not chain:
        return Request(at_ns, prompt, output)
    return Request(at_ns, prompt, output, *chain[-1], tuple(chain[:-1]))


def _sharegpt(path: Path, most: int, rate: float, characters: float) -> _Trace:
    """Read conversations: the first question and its answer are a request."""
    where, conversations = shown(path), json_of(path)
    dropped, tokens = Counter[str](), list[tuple[int, int]]()
    for one in conversations:
        first = _first_turns(one)
        if first and len(tokens) < most:
            question, answer = (max(1, round(len(text) / characters)) for text in first)
            tokens.append((question, answer))
            dropped["later turns of conversations"] += len(one["conversations"]) - 2
        else:
            dropped["further conversations" if first else "conversations without question and answer"] += 1
    insist(tokens, where, "a conversation begins with a question (human) and its answer (gpt)", "none that does")
    gaps = np.random.default_rng(_SEED).standard_exponential(len(tokens)) * _NS_PER_S / rate
    times = [round(at) for at in np.cumsum(gaps) - gaps[0]]
    derived = [
        f"Requests come at random, {rate:g} in a second on average (--rate).",
        f"A token is {characters:g} characters (--characters).",
    ]
    requests = [Request(at, prompt, output) for at, (prompt, output) in zip(times, tokens, strict=True)]
    return _Trace(Arriving(requests), derived, dropped)


def _first_turns(conversation: Any) -> list[str]:
    """The question and the answer with which a conversation begins; nothing if it does not."""
    turns = conversation.get("conversations") if type(conversation) is dict else None
    first = turns[:2] if type(turns) is list else []
    said = [(turn.get("from"), turn.get("value")) for turn in first if type(turn) is dict]
    texts = [text for who, text in said if type(text) is str and text]
    return texts if [who for who, _ in said] == ["human", "gpt"] and len(texts) == 2 else []

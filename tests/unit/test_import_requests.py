"""Traces of requests become requests and a workload: each kind by hand, faults in one message, and spoilt files."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from examples import examples
from mutations import broken, changed, fields, lines, packed
from recorded import ABSENT, DATA, piece

import simulator as hosim
from simulator import catalog, importers, inputs
from simulator.errors import ConfigError
from simulator.formats import read_requests, tables_csv
from simulator.importers import request_traces

MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1500, "input_length": 1300, "output_length": 7, "hash_ids": [0, 1, 3]},
    {"timestamp": 2000.5, "input_length": 512, "output_length": 1, "hash_ids": [0]},
    {"timestamp": 2500, "input_length": 90, "output_length": 0, "hash_ids": [9]},
]
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURST = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,a,1.5,ChatGPT,472,18,490,Conversation log
45,b,2,ChatGPT,0,0,0,Conversation log
118,,3,GPT-4,417,276,693,API log
"""
SHAREGPT = [
    {"id": "x", "conversations": [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 80},
                                  {"from": "human", "value": "c"}]},
    {"id": "y", "conversations": [{"from": "gpt", "value": "first"}]},
    {"id": "z", "conversations": [{"from": "human", "value": "?"}, {"from": "gpt", "value": "!" * 12}]},
]  # fmt: skip


def jsonl(records):
    return "".join(f"{json.dumps(one)}\n" for one in records)


@pytest.fixture
def imported(tmp_path):
    """Import a text, write what comes of it, and read that back."""

    def do(text, name="trace.txt", **options):
        path = tmp_path / name
        path.write_text(text)
        found = hosim.read_request_trace(path, **options)
        files = found.write(tmp_path / "mine.yaml", force=True)
        return found, read_requests(files[1])

    return do


def test_blocks_of_mooncake_become_a_tree_of_prefixes(imported):
    found, come = imported(jsonl(MOONCAKE))
    first, second, third = come.requests
    assert [(one.arrival_ns, one.prompt, one.output) for one in come.requests] == [
        (0, 1100, 5), (1_500_000_000, 1300, 7), (2_000_500_000, 512, 1),
    ]  # fmt: skip
    assert (first.above, first.prefix_tokens) == (((0, 512), (1, 1024)), 1100)
    assert (second.above, second.prefix, second.prefix_tokens) == (((0, 512), (1, 1024)), 3, 1300)
    assert (third.above, third.prefix) == ((), 0)
    assert found.workload.requests.block == 512
    assert found.dropped == {"requests without a prompt or an output token": 1}


def test_the_model_serves_on_its_own_ranks_if_it_serves_requests_there(imported):
    on_eight, alone = (
        imported(AZURE, model=name)[0].files[".yaml"] for name in ("qwen3_235b_turns", "llama3_70b_train")
    )
    assert (on_eight.parallel.ranks, on_eight.parallel.tensor) == ("all", 8)
    assert [key for key in on_eight.sources if key.startswith(("parallel", "requests"))] == ["parallel"]
    assert "parallel" not in alone.model_fields_set


def test_an_id_after_others_is_another_block(imported):
    """Names count with all before them, so that a trace whose ids are of the blocks alone is read aright."""
    records = [{**MOONCAKE[0], "hash_ids": ids} for ids in ([1, 5, 6], [2, 5, 6])]
    _, come = imported(jsonl(records))
    assert len({node for one in come.requests for node, _ in (*one.above, (one.prefix, 0))}) == 6


def test_ids_are_texts_and_numbers_of_any_size(imported):
    """Each is another block: those that fit no column of 64 bits, and texts with blanks and commas, are numbered."""
    records = [{**MOONCAKE[0], "hash_ids": [7, *ids]} for ids in (["a b,c", 1], ["1", 2], [1, 2], [-1, 2], [2**63, 3])]
    _, come = imported(jsonl([*records, records[0]]))
    assert len({one.above[1] for one in come.requests}) == 5
    assert come.requests[0][3:] == come.requests[5][3:]


def test_names_without_end_are_refused(imported, monkeypatch):
    monkeypatch.setattr(tables_csv, "_MOST_PREFIXES", 4)
    many = jsonl([{**MOONCAKE[0], "hash_ids": [number, 5, 6]} for number in range(3)])
    with pytest.raises(ConfigError, match="a trace names at most 4 prefixes, found more"):
        imported(many)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (AZURE, [(0, 4808, 10), (52_000_000, 3180, 8)]),
        (BURST, [(0, 472, 18), (113_000_000_000, 417, 276)]),
        ("arrival,prompt,output\n3,8,1\n1,9,2\n", [(0, 9, 2), (2_000_000_000, 8, 1)]),
    ],
)
def test_tables_are_told_by_their_columns(text, expected, imported):
    _, come = imported(text)
    assert [one[:3] for one in come.requests] == expected
    found, slow = imported(text, slower=2.5)
    assert [one.arrival_ns for one in slow.requests] == [round(2.5 * at) for at, *_ in expected]
    assert "Times between arrivals are 2.5 times as long as in the file (--slower)." in found.derived


def test_what_is_left_out_and_what_is_out_of_order_is_told(imported):
    assert imported(BURST)[0].dropped == {"requests without a prompt or an output token": 1}
    found, come = imported("arrival,prompt,output\n3,8,1\n1,9,2\n2,7,1\n", count=2)
    assert [one.prompt for one in come.requests] == [9, 7]
    assert found.dropped == {"further requests": 1}
    assert found.derived[:2] == (
        "2 requests stood after later ones; all are now in order of arrival.",
        "The first 2 requests by arrival are taken (--count; a run serves at most 100,000).",
    )


def test_conversations_become_lengths_at_a_rate(imported):
    found, come = imported(json.dumps(SHAREGPT), rate=2.0, characters=8.0)
    assert [one[1:3] for one in come.requests] == [(5, 10), (1, 2)]
    assert come.requests[1].arrival_ns > 0
    assert float(found.files[".csv"].split(b"\n")[1].split(b",")[0]) == 0, "the first comes at once"
    dropped = {"later turns of conversations": 1, "conversations without question and answer": 1, "key 'id'": 3}
    assert found.dropped == dropped
    twice = imported(json.dumps(SHAREGPT), rate=1.0)[1].requests[1].arrival_ns
    assert twice == pytest.approx(2 * come.requests[1].arrival_ns, abs=2)
    assert any("--characters" in said for said in found.derived)


def test_a_list_is_no_longer_than_memory_allows_on_however_many_lines(imported, monkeypatch):
    lengths = json.dumps([{"prompt_len": 5, "output_len": 1}] * 20)
    monkeypatch.setattr(inputs, "LONGEST_LINE_BYTES", len(lengths) // 2)
    found, come = imported(lengths)
    assert len(come.requests) == 20
    assert not any("--characters" in said for said in found.derived)
    monkeypatch.setattr(request_traces, "_MOST_BYTES", len(lengths) // 2)
    with pytest.raises(ConfigError, match="an input has at most"):
        imported(lengths)


def talk(*turns, who="from", what="value", key="conversations"):
    return {key: [{who: name, what: text} for name, text in turns]}


HEARD = [("user", "a" * 40), ("assistant", "b" * 80)]
ROLES = {"who": "role", "what": "content", "key": "messages"}
LENGTHS = {"prompt_len": 10, "output_len": 20}


@pytest.mark.parametrize("as_text", [jsonl, json.dumps])
@pytest.mark.parametrize(
    "record",
    [
        talk(*HEARD),
        talk(("human", "a" * 40), ("gpt", "b" * 80), ("human", "more")),
        talk(*HEARD, **ROLES),
        talk(("system", "a" * 8), ("user", "a" * 32), HEARD[1], **ROLES),
        LENGTHS,
        {"input_length": 10.0, "output_length": 20, "prompt": "text"},
    ],
)
def test_each_dialect_is_read_as_a_list_and_line_by_line(as_text, record, imported):
    second = {**LENGTHS, "prompt_len": 3}
    found, come = imported(
        as_text([record, second, talk(("user", "?"), **ROLES), {**LENGTHS, "output_len": 0}]), rate=2.0
    )
    assert [one[1:3] for one in come.requests] == [(10, 20), (3, 20)]
    assert come.requests[1].arrival_ns > 0
    assert found.dropped["conversations without question and answer"] == 1
    assert found.dropped["requests without a prompt or an output token"] == 1
    assert found.dropped.get("key 'prompt'", 0) == ("prompt" in record)
    assert found.dropped.get("later turns of conversations", 0) == (len(record.get("conversations", ())) == 3)


BAILIAN = {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 13,
           "type": "text", "turn": 1, "hash_ids": [7, 8, 9]}  # fmt: skip


@pytest.mark.parametrize(
    ("times", "options", "gap_ns"),
    [
        ({"timestamp": 1500}, {}, 1_500_000_000),
        ({"timestamp": 1500}, {"unit": "s"}, 1_500_000_000_000),
        ({"timestamp_ms": 1500}, {}, 1_500_000_000),
        ({"arrival_time": 1.5}, {}, 1_500_000_000),
        ({"arrived_at": 1.5}, {}, 1_500_000_000),
        ({"arrival_time_ns": 1500}, {}, 1500),
    ],
)
@pytest.mark.parametrize(
    "names",
    [
        request_traces._LENGTHS[0],
        *(pytest.param(names, marks=pytest.mark.slow) for names in request_traces._LENGTHS[1:]),
    ],
)
def test_times_go_by_the_names_that_tools_use_beside_all_names_of_lengths(times, options, gap_ns, names, imported):
    check_names(times, options, gap_ns, names, imported)


@pytest.mark.parametrize("names", request_traces._LENGTHS[1:])
def test_lengths_go_by_the_names_that_tools_use(names, imported):
    check_names({"timestamp": 1500}, {}, 1_500_000_000, names, imported)


def check_names(times, options, gap_ns, names, imported):
    tokens = dict(zip(names, (30, 4), strict=True))
    found, come = imported(jsonl([{**dict.fromkeys(times, 0), **tokens}, times | tokens]), **options)
    assert [tuple(one[:3]) for one in come.requests] == [(0, 30, 4), (gap_ns, 30, 4)]
    assert not found.dropped
    assert ("--unit" in str(found)) == ("timestamp" in times)


def test_bailian_counts_seconds_and_blocks_of_16_tokens(imported):
    found, come = imported(jsonl([BAILIAN, BAILIAN | {"timestamp": 63.0}]))
    assert come.requests[1].arrival_ns == 1_886_000_000
    assert found.workload.requests.block == 16
    assert come.requests[1].prefix_tokens == 40, "the prompt is one that came before"


def test_a_table_is_read_into_the_workload_of_its_name(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("arrival,prompt,output\n0,177,2\n")
    files = hosim.read_request_trace(path).write(tmp_path / "mine.yaml", source=path)
    assert [file.name for file in files] == ["mine.yaml", "mine.imported.csv"]
    assert path.read_text().endswith("0,177,2\n"), "what is read is not written over"
    assert catalog.load(files[0]).document.requests.file == "mine.imported.csv"


def test_what_has_times_has_them_in_a_list_too(imported):
    (listed, _), (lined, _) = imported(json.dumps(MOONCAKE)), imported(jsonl(MOONCAKE))
    assert listed.files[".csv"] == lined.files[".csv"]


@pytest.mark.parametrize(
    ("text", "expected", "left_out"),
    [
        ("arrival,prompt,output\n0,177.0,2.00\n", (177, 2), 0),
        ("arrival,prompt,output\n0,0,5\n1,9,2\n", (9, 2), 1),
        ("arrival,prompt,output,,\n0,9,2,,\n", (9, 2), 0),
        (jsonl([{**MOONCAKE[0], "input_length": 0, "hash_ids": []}, MOONCAKE[2]]), (512, 1), 1),
    ],
)
def test_numbers_of_tables_of_fractions_are_read_and_what_has_no_prompt_is_left_out(text, expected, left_out, imported):
    found, come = imported(text)
    assert [one[1:3] for one in come.requests] == [expected]
    assert found.dropped.get("requests without a prompt or an output token", 0) == left_out


@pytest.mark.parametrize(
    "text", [jsonl(MOONCAKE), AZURE, BURST, json.dumps(SHAREGPT), jsonl([LENGTHS]), jsonl([talk(*HEARD, **ROLES)])]
)
def test_a_trace_is_known_by_what_is_in_it(text, tmp_path):
    path = tmp_path / "trace"
    path.write_text(text)
    assert importers.sniff(path) == "requests"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("", {}, "a trace of requests has some, found an empty file"),
        (" \n\n", {}, "a trace of requests has some, found an empty file"),
        ("TIMESTAMP,ContextTokens\n", {}, "the first line names arrival,prompt,output or TIMESTAMP,ContextTokens,Gen"),
        (
            "TIMESTAMP,ContextTokens,Answers\n",
            {},
            "found 'TIMESTAMP,ContextTokens,Answers' without GeneratedTokens; name the columns",
        ),
        (AZURE.replace("s\n", "s,ContextTokens\n", 1), {}, "each column is named once, found 'ContextTokens' again"),
        (AZURE + "1," + "9" * 200_000 + ",1\n", {}, "trace.txt:4: a table can be read, found field larger than"),
        ("arrival,prompt,output\n0,177.5,1\n", {}, "trace.txt:2: prompt is a whole number from 0"),
        (
            jsonl([{"timestamp": 0, "input_length": 1.5, "output_length": 1}]),
            {},
            "input_length is a whole number, found",
        ),
        (jsonl([LENGTHS, {"prompt_len": "9", "output_len": 1}]), {}, "trace.txt:2, prompt_len: prompt_len is a number"),
        (
            jsonl([{"prompt_len": 9}]),
            {},
            "trace.txt:1, output_len: output_len is a number from 0 to 10,000,000, found none",
        ),
        (AZURE.replace(",10\n", ",-1\n"), {}, "trace.txt:2: GeneratedTokens is a whole number from 0"),
        ("Timestamp,Request tokens,Response tokens\n-5,1,1\n", {}, "Timestamp is a number of seconds from 0"),
        (jsonl([{**MOONCAKE[0], "timestamp": -1}]), {}, "trace.txt:1, timestamp: timestamp is a number from 0"),
        (
            jsonl([{"timestamp": 0, "output_length": 1}]),
            {},
            "input_length is a number from 0 to 10,000,000, found none",
        ),
        (jsonl(MOONCAKE)[:-9], {}, "trace.txt:4: each line is a JSON object, found a last line that breaks off"),
        (
            jsonl(MOONCAKE),
            {"hash_block": 16},
            "names each block of 16 tokens, found 3 names for 1,100 tokens; state the tokens of an id: --",
        ),
        (jsonl([{**MOONCAKE[0], "hash_ids": [[]]}]), {}, "hash_ids is a list of numbers, or of names"),
        (jsonl(MOONCAKE[3:]), {}, "a trace has requests: "),
        ("[" * 10_000, {}, "the file is JSON"),
        ("[{}]", {}, "input_length and output_length, or a question (human) and its answer (gpt), found none"),
        ("[{}, 1]", {}, "trace.txt[1]: requests are objects, found 1"),
        (AZURE, {"slower": 0.0}, "--slower: it is above 0"),
        (AZURE, {"count": 0}, "--count: it is above 0"),
        (json.dumps(SHAREGPT), {"rate": float("nan")}, "--rate: it is above 0"),
        (AZURE, {"model": "cosmos3_blocks"}, "--model cosmos3_blocks: requests are served by a decoder, found a graph"),
        (AZURE, {"model": "dlrm_1t2_train"}, "requests are served by a decoder, found a recommender"),
    ],
)
def test_a_fault_is_one_message(text, options, said, imported):
    with pytest.raises(ConfigError) as refused:
        imported(text, **options)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 700


def test_a_long_trace_is_cut_at_what_a_run_serves(imported, monkeypatch):
    monkeypatch.setattr(request_traces, "MOST", 2)
    found, come = imported(jsonl(MOONCAKE))
    assert len(come.requests) == 2
    assert found.dropped["further requests"] == 1


def spoilt(random: Random) -> bytes:
    """A file of one of the kinds that went wrong."""
    which = random.randrange(4)
    if which < 2:
        return broken(random.choice((AZURE, BURST)).encode(), random)
    records = changed(MOONCAKE if which == 2 else random.choice((SHAREGPT, [LENGTHS, talk(*HEARD, **ROLES)])), random)
    if (which == 2 or random.random() < 0.3) and type(records) is list:
        data = jsonl(records).encode(errors="surrogatepass")
    else:
        data = json.dumps(records, ensure_ascii=False).encode(errors="surrogatepass")
    return broken(data, random) if random.random() < 0.4 else data


def spoilt_published(random: Random) -> bytes:
    """A piece of a published file that went wrong."""
    if random.random() < 0.5:
        table = "".join(piece("requests/AzureLLMInferenceTrace_code.csv", random))
        return broken(table.encode(), random) if random.random() < 0.4 else fields(table, random)
    records = [json.loads(line) for line in piece("requests/mooncake_synthetic_trace.jsonl", random)]
    return broken(jsonl(records).encode(), random) if random.random() < 0.4 else lines(records, random)


def read(number: int, folder, make: Callable[[Random], bytes] = spoilt) -> bool:
    random = Random(f"requests {number}")
    data, path = make(random), folder / "trace.txt"
    if random.random() < 0.1:
        path, data = folder / "trace.txt.gz", packed(data, random)
    path.write_bytes(data)
    try:
        found = hosim.read_request_trace(path)
        assert str(found).replace("\n", "").isprintable()
        files = found.write(folder / "mine.yaml", force=True)
        assert read_requests(files[1]).requests
    except ConfigError as error:
        message = str(error)
        assert len(message) < 2000, message
        assert message.isprintable(), ascii(message)
        return False
    return True


def test_a_trace_that_went_wrong_is_read_or_refused(tmp_path):
    assert {read(number, tmp_path) for number in range(20)} == {True, False}


@pytest.mark.slow
def test_many_traces_that_went_wrong(tmp_path):
    for number in range(20, 60 + examples(10_000)):
        read(number, tmp_path)


@pytest.mark.skipif(not DATA, reason=ABSENT)
@pytest.mark.parametrize(
    ("name", "requests", "prompts"),
    [
        pytest.param("mooncake_synthetic_trace.jsonl", 3993, 61_194_628, marks=pytest.mark.slow),
        ("AzureLLMInferenceTrace_code.csv", 8819, 18_059_974),
    ],
)
def test_published_traces_are_read_whole(name, requests, prompts, tmp_path):
    found = hosim.read_request_trace(DATA / "requests" / name)
    come = read_requests(found.write(tmp_path / "mine.yaml")[1]).requests
    assert len(come) == requests
    assert sum(one.prompt for one in come) == prompts
    assert not found.dropped


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason=ABSENT)
@pytest.mark.parametrize("name", ["mooncake_synthetic_trace.jsonl", "AzureLLMInferenceTrace_code.csv"])
def test_published_traces_are_served(name, tmp_path):
    """The first requests of each."""
    found = hosim.read_request_trace(DATA / "requests" / name, model="llama32_1b_hits", count=5, slower=20)
    found.write(tmp_path / "mine.yaml")
    text = "schema: hosim/scenario/1\nname: story\nhardware: h100_sxm\nworkload: mine.yaml\npolicies: [static]\n"
    (tmp_path / "story.yaml").write_text(text)
    (row,) = hosim.serve(tmp_path / "story.yaml").rows
    assert (row["status"], row["finished"]) == ("ok", 5)


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason=ABSENT)
def test_many_published_traces_that_went_wrong(tmp_path):
    assert {read(number, tmp_path, spoilt_published) for number in range(examples(10_000))} == {True, False}

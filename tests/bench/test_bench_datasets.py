"""Datasets: exact lengths, fresh prompts, the files of the field, and what is said of files that are wrong."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlab.bench.datasets import ByteTokenizer, Encoder, Sample, load_samples, settled
from mqlab.bench.options import DatasetConfig
from mqlab.errors import ConfigError
from mqlab.text.tokenizer import Tokenizer

BYTES = ByteTokenizer(1000, special_ids=(0, 7))
POEM = "\n".join(f"Line {i} of the poem, which goes on for a while." for i in range(40))
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02}.9799600,{100 + second},{1 + second}\n" for second in (3, 4, 8, 20)
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,,1.5,ChatGPT,472,18,490,Conversation log\n45,,0,ChatGPT,1087,0,1087,API log\n118,,2,GPT-4,417,276,693,API log\n"
)
MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
    {"timestamp": 500, "input_length": 600, "output_length": 6, "hash_ids": [1, 4]},
    {"timestamp": 2000, "input_length": 700, "output_length": 7, "hash_ids": [1]},
]


def load(count: int = 4, tokenizer: Encoder = BYTES, **options: Any) -> list[Sample]:
    return load_samples(DatasetConfig(**options), tokenizer, count)


def ids(sample: Sample) -> tuple[int, ...]:
    assert isinstance(sample.prompt, tuple)
    return sample.prompt


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def conversations(*pairs: tuple[str, str]) -> str:
    return json.dumps([{"id": "x", "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in pairs])


@given(
    name=st.sampled_from(["random", "prefix"]),
    count=st.integers(1, 30),
    length=st.integers(2, 60),
    ratio=st.floats(0, 0.99),
    seed=st.integers(0),
)
def test_made_up_prompts_are_as_long_as_they_say(name: Any, count: int, length: int, ratio: float, seed: int) -> None:
    samples = load(count, dataset_name=name, input_len=length, output_len=length, range_ratio=ratio, seed=seed)
    assert len(samples) == count
    for one in samples:
        assert len(ids(one)) == one.prompt_tokens
        assert length * (1 - ratio) - 1 <= one.output_tokens <= length * (1 + ratio) + 1
        assert one.output_tokens >= 1
        assert set(ids(one)) <= set(range(1000)) - {0, 7}, "special tokens may end or reshape a prompt"
    if not ratio:
        assert {(one.prompt_tokens, one.output_tokens) for one in samples} == {(length, length)}


def test_every_run_has_fresh_prompts_unless_a_seed_is_given() -> None:
    assert not set(load(20)) & set(load(20))
    assert load(20, seed=3) == load(20, seed=3) != load(20, seed=4)


def test_the_seed_that_was_drawn_repeats_the_run() -> None:
    config = settled(DatasetConfig(range_ratio=0.5))
    assert config.seed is not None
    assert config.as_record() == {"dataset_name": "random", "range_ratio": 0.5, "seed": config.seed}
    assert load_samples(config, BYTES, 9) == load(9, **config.as_record())


def test_prefixes_are_shared_within_groups_only() -> None:
    samples = load(12, dataset_name="prefix", input_len=40, prefix_len=30, num_prefixes=3)
    assert sorted(Counter(ids(one)[:30] for one in samples).values()) == [4, 4, 4]
    assert len({ids(one)[30:] for one in samples}) == 12
    with pytest.raises(ConfigError, match=r"--prefix-len=40 must be below --input-len \(40\)"):
        load(dataset_name="prefix", input_len=40, prefix_len=40)


def test_the_corpus_is_english_cut_to_exact_lengths(model_folder: Path) -> None:
    tokenizer = Tokenizer.load(model_folder)
    assert tokenizer.encode("<|im_start|>")[0] in tokenizer.special_ids
    samples = load(5, tokenizer, dataset_name="corpus", input_len=200)
    assert [len(ids(one)) for one in samples] == [200] * 5
    # A passage may be a table of operators; five of them at random are not.
    assert "the" in " ".join(tokenizer.decode(ids(one)) for one in samples)


def test_a_corpus_may_be_ones_own(tmp_path: Path) -> None:
    path = write(tmp_path, "text.txt", POEM)
    assert bytes(ids(load(1, dataset_name="corpus", dataset_path=path)[0])).decode() in POEM
    with pytest.raises(ConfigError, match=rf"--input-len=9999 needs a text of more tokens; this one has {len(POEM)}"):
        load(dataset_name="corpus", dataset_path=path, input_len=9999)


# --- ShareGPT


def test_sharegpt_gives_first_turns_by_vllms_rules(tmp_path: Path) -> None:
    pairs = [
        ("a question", "an answer"),
        ("?", "too short a question"),
        ("too short an answer", "!"),
        ("x" * 1025, "too long"),
        ("x" * 1000, "y" * 1049),
    ]
    path = write(tmp_path, "chat.json", conversations(*pairs, ("another one", "and its answer")))
    samples = load(2, dataset_path=path)
    assert {(one.prompt, one.prompt_tokens, one.output_tokens) for one in samples} == {("a question", 10, 9), ("another one", 11, 14)}
    assert {one.output_tokens for one in load(3, dataset_path=path, output_len=7)} == {7}


def test_sharegpt_skips_what_nobody_answered(tmp_path: Path) -> None:
    data = json.loads(conversations(("a question", "an answer")))
    lonely = [{"conversations": []}, {"id": 1}, {"conversations": [{"from": "human", "value": "is anybody there?"}]}]
    assert [one.prompt for one in load(1, dataset_path=write(tmp_path, "chat.json", json.dumps(lonely + data)))] == ["a question"]


def test_too_few_conversations_are_repeated_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "chat.json", conversations(("a question", "an answer")))
    assert [one.prompt for one in load(3, dataset_path=path)] == ["a question"] * 3
    assert "has 1 usable requests where 3 were asked for: prompts repeat" in caplog.text
    assert len(load(3, dataset_path=path, oversample=False)) == 1
    assert "these are all that will be sent" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (conversations(("a question", "an answer"))[:-30], r"chat.json, character \d+ of \d+ \(line 1\): Unterminated string.*cut short"),
        ('[{"conversations": []},', r"character 23 of 23.*cut short"),
        ('[{"conversations": []}} ]', r"character 22 of 25 \(line 1\): Expecting ',' delimiter; expected a JSON list"),
        (
            '[{"conversations": []}, {"conversations": [{"value": 3}]}]',
            r"at \$\[1\]\.conversations\[0\]\.value .*Expected `str`, got `int`",
        ),
        ('[{"conversations": [{"from": "human"}]}]', r"at \$\[0\]\.conversations\[0\].*missing required field `value`"),
        ("[]", "nothing in it can be used as a sharegpt dataset"),
        ('{"id": 1}', "Expected `array`, got `object`; expected a JSON list"),
    ],
)
def test_a_wrong_sharegpt_file_is_named_with_the_place(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, "chat.json", text)
    with pytest.raises(ConfigError, match=words):
        load(dataset_name="sharegpt", dataset_path=path)


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(conversations(("a question", "an answer")).replace("question", "qu?stion").encode().replace(b"?", b"\xe9"))
    with pytest.raises(ConfigError, match="is not UTF-8; expected a JSON list"):
        load(dataset_path=str(path))


# --- sonnet


def test_sonnet_prompts_share_their_first_lines_and_stay_within_their_length(tmp_path: Path) -> None:
    path = write(tmp_path, "sonnet.txt", POEM)
    samples = load(6, dataset_path=path)
    longest = max(map(len, POEM.splitlines())) + 1
    prompts = [str(one.prompt) for one in samples]
    first = "Pick as many lines as you can from these poem lines:\nLine 0 of the poem, which goes on for a while.\nLine 1"
    assert all(prompt.startswith(first) for prompt in prompts)
    assert len(set(prompts)) == 6
    assert all(550 - longest < one.prompt_tokens == len(str(one.prompt)) <= 550 for one in samples)
    assert {one.output_tokens for one in samples} == {150}


def test_sonnet_lengths_are_options_and_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path, "sonnet.txt", POEM)
    sample = load(1, dataset_name="sonnet", dataset_path=path, input_len=250, output_len=20)[0]
    assert sample.prompt_tokens <= 250
    assert sample.output_tokens == 20
    with pytest.raises(ConfigError, match="--prefix-len=250 must be below"):
        load(dataset_path=path, input_len=250, prefix_len=250)
    with pytest.raises(ConfigError, match="--input-len=60 leaves no room for a line"):
        load(dataset_path=path, input_len=60)
    with pytest.raises(ConfigError, match="is empty; expected lines of plain text"):
        load(dataset_name="sonnet", dataset_path=write(tmp_path, "none.txt", "\n\n"))


# --- traces


def test_azure_rows_keep_their_times_and_lengths(tmp_path: Path) -> None:
    samples = load(3, dataset_path=write(tmp_path, "azure.csv", AZURE))
    assert [(one.prompt_tokens, one.output_tokens) for one in samples] == [(103, 4), (104, 5), (108, 9)]
    assert [one.at_s for one in samples] == pytest.approx([0, 1, 5])
    assert [len(ids(one)) for one in samples] == [103, 104, 108]


def test_azures_second_year_names_its_zone(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,5,6\n2024-05-10 00:00:00.5+00:00,7,8\n"
    assert load(2, dataset_path=write(tmp_path, "azure.csv", text))[1].at_s == pytest.approx(0.49007)


def test_burstgpt_leaves_failed_requests_out(tmp_path: Path) -> None:
    samples = load(2, dataset_path=write(tmp_path, "burst.csv", BURSTGPT))
    assert [(one.prompt_tokens, one.output_tokens, one.at_s) for one in samples] == [(472, 18, 0), (417, 276, 113)]


def test_a_time_that_is_none_is_an_error_of_its_line(tmp_path: Path) -> None:
    text = "Timestamp,Request tokens,Response tokens\nnan,5,6\n"
    with pytest.raises(ConfigError, match=r"burst.csv, line 2: \['nan', '5', '6'\]: the time is nan"):
        load(1, dataset_path=write(tmp_path, "burst.csv", text))


def test_mooncake_replays_shared_blocks(tmp_path: Path) -> None:
    path = write(tmp_path, "mooncake.jsonl", "\n".join(map(json.dumps, MOONCAKE)))
    one, two, three = load(3, dataset_path=path)
    assert [one.at_s, two.at_s, three.at_s] == [0, 0.5, 2]
    assert [len(ids(sample)) for sample in (one, two, three)] == [1100, 600, 700]
    assert ids(one)[:512] == ids(two)[:512] == ids(three)[:512], "hash id 1"
    assert len({ids(sample)[512:600] for sample in (one, two, three)}) == 3


@given(st.lists(st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(1, 16)), min_size=2, max_size=8), st.integers(0))
def test_prompts_agree_exactly_as_far_as_their_hash_ids_do(rows: list[tuple[list[int], int]], seed: int) -> None:
    lines = [
        {"timestamp": i, "input_length": 4 * len(ids) - 4 + -(-n // 4), "output_length": 1, "hash_ids": ids}
        for i, (ids, n) in enumerate(rows)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), "trace.jsonl", "\n".join(map(json.dumps, lines)))
        samples = load(len(rows), ByteTokenizer(10**6), dataset_path=path, trace_block_size=4, seed=seed)
    for (one, ids_one), (two, ids_two) in itertools.pairwise(zip(map(ids, samples), (row[0] for row in rows), strict=True)):
        shared = 4 * sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(ids_one, ids_two, strict=False)))
        length = min(len(one), len(two))
        assert one[: min(shared, length)] == two[: min(shared, length)]
        if length - shared >= 4:
            assert one[shared : shared + 4] != two[shared : shared + 4], "four of a million ids do not meet by chance"


def test_a_trace_can_be_windowed_stretched_and_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, "azure.csv", AZURE)

    def times(**options: Any) -> Any:
        return pytest.approx([one.at_s for one in load(4, dataset_path=path, **options)])

    assert times(trace_start=1) == [0, 4, 16]
    assert times(trace_start=1, trace_seconds=5) == [0, 4]
    assert times(trace_stretch=0.5) == [0, 0.5, 2.5, 8.5]
    assert times(trace_rate=4) == [0, 0.75 / 17, 3.75 / 17, 0.75]
    assert "has 3 usable requests where 4 were asked for: these are all" in caplog.text
    cut = load(4, dataset_path=path, trace_max_input_len=104, trace_max_output_len=20)
    assert [(one.prompt_tokens, one.output_tokens) for one in cut] == [(103, 4), (104, 5), (104, 9), (104, 20)]
    assert "2 of 4 requests of the trace are cut" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "t.csv",
            AZURE + "soon,1,2\n",
            r"t.csv, line 6: \['soon', '1', '2'\]: Invalid isoformat string: 'soon'; expected values of TIMESTAMP",
        ),
        ("t.csv", AZURE + "2023-11-16 18:18:00,1\n", r"t.csv, line 6: .*; expected values of TIMESTAMP, ContextTokens"),
        (
            "t.jsonl",
            json.dumps(MOONCAKE[0]) + '\n{"timestamp": 5, "input_le',
            r"t.jsonl, line 2: Input data was truncated; expected an object",
        ),
        ("t.jsonl", '{"timestamp": 5, "output_length": 5}', "line 1: Object missing required field `input_length`"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no requests after --trace-start=0"),
        ("t.csv", "when,how\n1,2\n", "line 1: is of no known trace format; expected Azure CSV"),
    ],
)
def test_a_wrong_trace_is_named_with_the_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(9, dataset_name="trace", dataset_path=write(tmp_path, name, text))


# --- settings


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.csv", "when,how\n1,2\n", "'when,how' is of no known kind"),
        ("x.bin", "\0\1", "of no known kind"),
        ("x.txt", "", "of no known kind"),
    ],
)
def test_a_file_of_no_known_kind_is_refused(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(dataset_path=write(tmp_path, name, text))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset_path": "/nowhere/file.json"}, "--dataset-path='/nowhere/file.json': there is no such file"),
        ({"dataset_path": "/tmp"}, "--dataset-path='/tmp': there is no such file"),
        ({"dataset_name": "sonnet"}, "--dataset-name='sonnet' is read from a file: name it with --dataset-path"),
        ({"dataset_name": "random", "num_prefixes": 3}, "--num-prefixes=3 means nothing to the random dataset; it is for prefix"),
        ({"num_prefixes": 3}, "means nothing to the random dataset"),
        ({"dataset_name": "sharegpt", "dataset_path": "x", "input_len": 3}, "--input-len=3 means nothing to the sharegpt dataset"),
        ({"dataset_name": "nope"}, "--dataset-name='nope'"),
        ({"input_len": 0}, "--input-len=0 must be at least 1"),
        ({"range_ratio": 1.0}, r"--range-ratio=1.0 must be in \[0, 1\)"),
        ({"seed": -1}, "--seed=-1 must be at least 0"),
        ({"trace_rate": 2.0, "trace_stretch": 2.0}, "--trace-rate=2.0 cannot be combined with --trace-stretch"),
        ({"trace_start": -1.0}, "--trace-start=-1.0 must be at least 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(**options)

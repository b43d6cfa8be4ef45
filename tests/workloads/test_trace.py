"""Traces as they are published: their times, lengths, prefixes, and every kind of bad line."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.workloads.base import Drawn, Segment, WorkloadError
from harness.workloads.prompts.token_ids import (
    draw_token_ids,
    prefix_hit_ceiling,
    shared_prefix_tokens,
)
from harness.workloads.trace.replay import TraceReplay

CONTEXT = 131_072
AZURE = (
    b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    b"2024-02-28 23:59:58.7500000,100,10\r\n"
    b"2024-02-28 23:59:59.9999999,200,20\r\n"
    b"2024-02-29 00:00:00.0000001,300,1"
)


def row(timestamp: Any = 0, tokens: Any = 10, output: Any = 5, **more: Any) -> dict[str, Any]:
    """Return one row of a Mooncake trace; a field given as None is left out."""
    fields = {"timestamp": timestamp, "input_length": tokens, "output_length": output, **more}
    return {name: value for name, value in fields.items() if value is not None}


def trace(path: Path, *lines: dict[str, Any] | str, **options: Any) -> TraceReplay:
    """Return a trace of these lines, written into a folder."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (path / "trace.jsonl").write_text(text)
    options = {"format": "mooncake", "path": path / "trace.jsonl", **options}
    return TraceReplay(name="t", **options)


def csv_trace(path: Path, content: bytes, **options: Any) -> TraceReplay:
    """Return a trace of these bytes, written into a folder; Azure's form if not told."""
    (path / "trace.csv").write_bytes(content)
    return TraceReplay(name="t", path=path / "trace.csv", **{"format": "azure", **options})


def draw(replay: TraceReplay, requests: int | None = None, seed: int = 0) -> Drawn:
    return replay.draw(requests=requests, seed=seed, max_model_len=CONTEXT)


def starts_of(drawn: Drawn) -> list[int | None]:
    return [conversation.start_ns for conversation in drawn.conversations]


def lines_of(drawn: Drawn) -> list[str]:
    return [conversation.conversation_id for conversation in drawn.conversations]


def lengths_of(drawn: Drawn) -> list[tuple[int, int]]:
    turns = [turn for conversation in drawn.conversations for turn in conversation.turns]
    return [(turn.prompt_tokens, turn.output_tokens) for turn in turns]


def prompts_of(drawn: Drawn) -> list[tuple[Segment, ...]]:
    return [turn.prompt for conversation in drawn.conversations for turn in conversation.turns]


def refusal_of(replay: TraceReplay, requests: int | None = None) -> str:
    """Return the message and notes of the error that a draw ends in."""
    with pytest.raises(WorkloadError) as caught:
        draw(replay, requests)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# Times


def test_times_of_mooncake_are_milliseconds(tmp_path: Path) -> None:
    """A plain timestamp of a Mooncake trace counts milliseconds, from the first request."""
    drawn = draw(trace(tmp_path, row(1_000), row(4_052), row(28_482)))
    assert starts_of(drawn) == [0, 3_052_000_000, 27_482_000_000]
    assert drawn.skipped == {}


def test_times_of_bailian_are_seconds_and_its_blocks_are_small(tmp_path: Path) -> None:
    """The same fields as Mooncake's, another unit and another block; a chat's rows are told."""
    chat = {"parent_chat_id": -1, "type": "text", "turn": 1}
    rows = [
        row(61.114, 20, 5, hash_ids=[4, 5], chat_id=9, **chat),
        row(62.5, 40, 5, hash_ids=[4, 5, 6], chat_id=12, **chat | {"parent_chat_id": 9}),
    ]
    drawn = draw(trace(tmp_path, *rows, format="bailian"))

    assert starts_of(drawn) == [0, 1_386_000_000]
    assert [sum(part.tokens for part in prompt) for prompt in prompts_of(drawn)] == [20, 40]
    assert prompts_of(drawn)[0][0] == prompts_of(drawn)[1][0]
    assert any("chat_id is not used" in note for note in drawn.notes)


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"time_unit": "s"}, {"timestamp": 61.114}, {"timestamp": 62.5}),
        ({"time_unit": "us"}, {"timestamp": 61_114_000}, {"timestamp": 62_500_000}),
        ({}, {"timestamp": 61_114}, {"timestamp": 62_500.0}),
        ({}, {"timestamp_us": 61_114_000}, {"timestamp_us": 62_500_000}),
        ({"time_unit": "ms"}, {"timestamp_s": 61.114}, {"timestamp_s": 62.5}),
        ({}, {"timestamp_us": 1700000061114000}, {"timestamp_us": 1700000062500000}),
        ({"time_unit": "s"}, {"timestamp": 1700000061.114}, {"timestamp": 1700000062.5}),
    ],
)
def test_every_unit_gives_the_same_offset(
    tmp_path: Path, options: dict[str, str], first: dict[str, Any], second: dict[str, Any]
) -> None:
    """1.386 s are 1.386 s to the nanosecond in any unit, also counted since 1970."""
    lines = ({**row(None), **first}, {**row(None), **second})
    replay = trace(tmp_path, *lines, **options)
    assert starts_of(draw(replay)) == [0, 1_386_000_000]


def test_unsorted_rows_are_sorted_and_noted(tmp_path: Path) -> None:
    """The smallest time is the zero, equal times keep their order, and the report says so."""
    replay = trace(tmp_path, row(500), row(900), row(700), row(500), row(100))
    drawn = draw(replay)
    assert lines_of(drawn) == ["line-5", "line-1", "line-4", "line-3", "line-2"]
    assert starts_of(drawn) == [0, *(ms * 1_000_000 for ms in (400, 400, 600, 800))]
    assert any("sorted by time" in note and "3 times" in note for note in drawn.notes)
    assert not any("sorted" in note for note in draw(trace(tmp_path, row(1), row(1))).notes)


def test_azure_rows_keep_every_digit(tmp_path: Path) -> None:
    """BOM, CR LF, seven digits, the turn of a leap day, and a last row without a line end."""
    drawn = draw(csv_trace(tmp_path, AZURE))
    assert starts_of(drawn) == [0, 1_249_999_900, 1_250_000_100]
    assert lengths_of(drawn) == [(100, 10), (200, 20), (300, 1)]
    assert lines_of(drawn) == ["line-2", "line-3", "line-4"]
    assert prefix_hit_ceiling(prompts_of(drawn), 1) == 0
    assert any("3 of 3 trace rows do not tell" in note for note in drawn.notes)


@pytest.mark.parametrize(
    "time", ["2024-02-29T00:00:01Z", "2024-02-29 02:00:01.000+02:00", "2024-02-29 00:00:01"]
)
def test_wall_times_with_and_without_a_zone(tmp_path: Path, time: str) -> None:
    """A zone is heeded, no zone is UTC, a fraction may be absent."""
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    content = f"{header}2024-02-29 00:00:00.0000000,5,5\n{time},5,5\n".encode()
    assert starts_of(draw(csv_trace(tmp_path, content))) == [0, 1_000_000_000]


# Prefixes


def test_one_id_is_one_text(tmp_path: Path) -> None:
    """Rows share the tokens of their common leading ids; the last block is partial."""
    replay = trace(
        tmp_path,
        row(0, 1_024, hash_ids=[7, 8]),
        row(1, 756, hash_ids=[7, 9]),
        row(2, 1_500, hash_ids=[7, 8, 10]),
        row(3, 20, hash_ids=[11]),
    )
    drawn = draw(replay)
    assert [[segment.tokens for segment in prompt] for prompt in prompts_of(drawn)] == [
        [512, 512],
        [512, 244],
        [512, 512, 476],
        [20],
    ]
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 512, 1_024, 0]
    assert prefix_hit_ceiling(prompts_of(drawn), 512) == (512 + 1_024) / (1_024 + 756 + 1_520)
    assert drawn.notes == ()


def test_block_tokens_are_an_option(tmp_path: Path) -> None:
    """The same ids at 16 tokens a block stand for 16 tokens."""
    replay = trace(tmp_path, row(0, 20, hash_ids=[4, 5]), row(1, 40, hash_ids=[4, 6, 7]))
    drawn = draw(TraceReplay(name="t", format="mooncake", path=replay.path, block_tokens=16))
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 16]
    assert "hash_ids has 2 ids, input_length 20 needs 1 at 512 tokens a block" in refusal_of(replay)


def test_an_id_of_two_sizes_is_noted(tmp_path: Path) -> None:
    """One id with two sizes shares the shorter one, and the report names both lines."""
    replay = trace(tmp_path, row(0, 1_024, hash_ids=[1, 2]), row(1, 600, hash_ids=[1, 2]))
    drawn = draw(replay)
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 600]
    assert drawn.notes == (
        "id 2 stands for 88 tokens on line 2 and for 512 on line 1: they share the shorter one",
    )


def test_rows_without_ids_are_texts_of_their_own(tmp_path: Path) -> None:
    """Ids may be absent from all rows or from some; the report says how many."""
    drawn = draw(trace(tmp_path, row(0, 600), row(1, 512, hash_ids=[1]), row(2, 600)))
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 0, 0]
    assert any("2 of 3 trace rows do not tell" in note for note in drawn.notes)


def test_texts_are_the_seeds_and_lengths_the_files(tmp_path: Path) -> None:
    """Another seed gives other texts, the same sharing and the same lengths and times."""
    rows = [row(0, 600, hash_ids=[1, 2]), row(9, 600, hash_ids=[1, 3]), row(12, 70)]
    replay = trace(tmp_path, *rows)
    one, same, other = draw(replay, seed=1), draw(replay, seed=1), draw(replay, seed=2)
    assert one == same
    assert (lengths_of(one), starts_of(one)) == (lengths_of(other), starts_of(other))
    names = [{part.text for prompt in prompts_of(d) for part in prompt} for d in (one, other)]
    assert len(names[0]) == len(names[1]) == 4
    assert not names[0] & names[1]
    assert [len(draw_token_ids(prompt)) for prompt in prompts_of(one)] == [600, 600, 70]


def test_linked_rows_are_said_to_be_apart(tmp_path: Path) -> None:
    """A session field does not make turns here, and the report says that."""
    drawn = draw(trace(tmp_path, row(0, session="a"), row(1, session="a")))
    assert len(drawn.conversations) == 2
    assert any("trace's session is not used" in note for note in drawn.notes)


# Forms of one's own


def test_own_jsonl_says_its_units(tmp_path: Path) -> None:
    """What cannot be guessed must be said: the unit of a plain timestamp, the size of a block."""
    rows = [row(1, 20, hash_ids=[1, 2]), row(2, 16, hash_ids=[1])]
    unsaid = trace(tmp_path, *rows, format="jsonl")
    assert "line 1: timestamp has no known unit" in refusal_of(unsaid)
    assert "time_unit: s | ms | us | ns" in refusal_of(unsaid)
    unsized = trace(tmp_path, *rows, format="jsonl", time_unit="s")
    assert "line 1: hash_ids has no known number of tokens" in refusal_of(unsized)
    assert "block_tokens" in refusal_of(unsized)
    said = draw(trace(tmp_path, *rows, format="jsonl", time_unit="s", block_tokens=16))
    assert starts_of(said) == [0, 1_000_000_000]
    assert list(shared_prefix_tokens(prompts_of(said))) == [0, 16]


def test_a_set_of_lengths_needs_no_times(tmp_path: Path) -> None:
    """A CSV of lengths is replayed in file order; the report says that it has no arrivals."""
    drawn = draw(
        csv_trace(tmp_path, b"input_tokens,output_tokens\n74,918\n290,905\n", format="csv")
    )
    assert lengths_of(drawn) == [(74, 918), (290, 905)]
    assert starts_of(drawn) == [None, None]
    assert any("no times" in note for note in drawn.notes)


def test_a_row_without_a_time_among_others_is_bad(tmp_path: Path) -> None:
    """Times are there for all rows or for none."""
    replay = trace(
        tmp_path, row(None, timestamp_s=3), row(None), row(None, timestamp_s=2), format="jsonl"
    )
    assert "line 2: no timestamp, which other rows have" in refusal_of(replay)


# Lines that hold no request

BAD_LINES: list[tuple[dict[str, Any] | str, str, str]] = [
    (row(tokens=0), "zero_input", "input_length is 0"),
    (row(tokens=-3), "negative", "input_length is -3"),
    (row(output=0), "zero_output", "output_length is 0"),
    (row(output=-1), "negative", "output_length is -1"),
    (row(tokens=None), "missing", "no input_length"),
    (row(output=None), "missing", "no output_length"),
    (row(None), "missing", "no timestamp"),
    ('{"timestamp": 1, "input_length": null, "output_length": 5}', "missing", "no input_length"),
    (row(tokens=12.5), "not_an_integer", "input_length is 12.5"),
    (row(tokens="100"), "not_an_integer", 'input_length is "100"'),
    (row(tokens=True), "not_an_integer", "input_length is true"),
    (row(tokens=[1]), "not_an_integer", "input_length is [1]"),
    (row(-1), "negative", "timestamp is -1"),
    (row("0"), "bad_time", 'timestamp is "0"'),
    (row(timestamp=True), "bad_time", "timestamp is true"),
    (row(10**40), "bad_time", "timestamp is 1000"),
    ('{"timestamp": 1e999999999, "input_length": 1, "output_length": 1}', "bad_time", "1E+9"),
    ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "bad_json", "NaN"),
    ('{"timestamp": 5, "input_length":', "bad_json", "no JSON: Expecting value at column 33"),
    ("[" * 100_000, "bad_json", "no JSON"),
    ("1" * 5_000, "bad_json", "no JSON"),
    ('["not", "an", "object"]', "not_an_object", 'found ["not", "an", "object"]'),
    (row(tokens=20, hash_ids=[1, 2]), "blocks_mismatch", "2 ids, input_length 20 needs 1"),
    (row(tokens=1_025, hash_ids=[1, 2]), "blocks_mismatch", "input_length 1025 needs 3"),
    (row(hash_ids=[]), "blocks_mismatch", "0 ids"),
    (row(hash_ids=[1.5]), "not_an_integer", "hash_ids holds 1.5"),
    (row(hash_ids=[2**63]), "not_an_integer", "hash_ids holds 9223372036854775808"),
    (row(hash_ids=7), "not_an_integer", "hash_ids is 7"),
]


@pytest.mark.parametrize(
    ("line", "reason", "piece"), BAD_LINES, ids=[f"{bad[1]}-{bad[2][:20]}" for bad in BAD_LINES]
)
def test_a_bad_line_is_named_or_counted(
    tmp_path: Path, line: dict[str, Any] | str, reason: str, piece: str
) -> None:
    """It is refused with file, physical line and value, or skipped and counted by reason."""
    lines = ("", row(3), "   ", line, row(4, output=1))
    message = refusal_of(trace(tmp_path, *lines))
    assert "trace.jsonl: line 4: " in message
    assert piece in message
    assert "bad_rows: skip" in message
    drawn = draw(trace(tmp_path, *lines, bad_rows="skip"))
    assert drawn.skipped == {reason: 1}
    assert lines_of(drawn) == ["line-2", "line-5"]
    assert len(message) < 400


def test_one_error_names_the_first_bad_lines(tmp_path: Path) -> None:
    """Five lines are named, the rest are counted."""
    replay = trace(tmp_path, row(), *[row(tokens=0)] * 4, *[row(tokens=-1)] * 4)
    message = refusal_of(replay)
    assert all(f"line {line}: input_length" in message for line in range(2, 7))
    assert "line 7" not in message
    assert "and 3 more" in message
    drawn = draw(trace(tmp_path, row(), *[row(tokens=0)] * 4, row(tokens=-1), bad_rows="skip"))
    assert drawn.skipped == {"zero_input": 4, "negative": 1}


@pytest.mark.parametrize(
    ("line", "reason", "piece"),
    [
        ("2024-02-29 00:00:00.1,5", "wrong_columns", "2 values, the header has 3"),
        ("2024-02-29 00:00:00.1,,5", "missing", "no ContextTokens"),
        ("2024-02-29 00:00:00.1,5.5,5", "not_an_integer", "ContextTokens is 5.5"),
        ("2024-02-29 00:00:00.1,many,5", "not_an_integer", 'ContextTokens is "many"'),
        ("2024-02-29 00:00:00.1,5,0", "zero_output", "GeneratedTokens is 0"),
        ("2024-02-30 00:00:00.1,5,5", "bad_time", 'TIMESTAMP is "2024-02-30 00:00:00.1"'),
        ("1709164800,5,5", "bad_time", "TIMESTAMP is 1709164800"),
        ('2024-02-29 00:00:00.1,"5,5', "bad_csv", "no CSV"),
    ],
)
def test_a_bad_csv_line_is_named_or_counted(
    tmp_path: Path, line: str, reason: str, piece: str
) -> None:
    """The header of a CSV is line 1, so the row behind three good ones is line 5."""
    content = AZURE + b"\r\n" + line.encode()
    message = refusal_of(csv_trace(tmp_path, content))
    assert "trace.csv: line 5: " in message
    assert piece in message
    drawn = draw(csv_trace(tmp_path, content, bad_rows="skip"))
    assert (drawn.skipped, len(drawn.conversations)) == ({reason: 1}, 3)


# Files that hold no trace


def test_a_file_of_another_form_is_refused(tmp_path: Path) -> None:
    """A CSV read as JSON lines, and one without the columns, say what was expected."""
    replay = csv_trace(tmp_path, AZURE)
    wrong = TraceReplay(name="t", format="mooncake", path=replay.path)
    assert "line 1: no JSON" in refusal_of(wrong)
    assert "is the format not mooncake? there are mooncake | azure" in refusal_of(wrong)
    columns = csv_trace(tmp_path, b"\nTIMESTAMP,Context,GeneratedTokens\n")
    refusal = refusal_of(columns)
    assert "trace.csv: line 2: no column ContextTokens; found" in refusal
    assert "its columns must be: TIMESTAMP, ContextTokens, GeneratedTokens" in refusal
    assert "line 1: no CSV" in refusal_of(csv_trace(tmp_path, b'"TIMESTAMP'))
    assert "line 1: no JSON" in refusal_of(
        TraceReplay(name="t", format="mooncake", path=_binary(tmp_path))
    )


def _binary(path: Path) -> Path:
    (path / "trace.gz").write_bytes(b"\x1f\x8b\x08\x00\xff\xfe\n\x00")
    return path / "trace.gz"


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """No line at all is no trace, in either form."""
    assert "trace.csv: line 1: no column" in refusal_of(csv_trace(tmp_path, content))
    assert "the file is empty" in refusal_of(csv_trace(tmp_path, content))
    assert "trace.jsonl: no row to replay" in refusal_of(trace(tmp_path, content.decode()))
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    assert "trace.csv: no row to replay" in refusal_of(csv_trace(tmp_path, header))


def test_no_row_left_is_refused_with_the_reasons(tmp_path: Path) -> None:
    """A trace of which every row was left out says why."""
    rows = (row(tokens=0), row(tokens=CONTEXT))
    message = refusal_of(trace(tmp_path, *rows, bad_rows="skip"))
    assert "no row to replay (left out: zero_input 1, context_length 1)" in message
    assert "raise it (`max_model_len` under `base` in a sweep" in message
    assert "mend the file" in refusal_of(trace(tmp_path, row(tokens=0), bad_rows="skip"))


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    """A path that is not there, or is a folder, is named."""
    for path in (tmp_path / "absent.jsonl", tmp_path):
        message = refusal_of(TraceReplay(name="t", format="mooncake", path=path))
        assert f"{path}: cannot be read: " in message


# How much of it


def test_rows_beyond_the_context_are_counted_or_refused(tmp_path: Path) -> None:
    """Input plus output equal to the limit is allowed; longer rows are left out or refused."""
    lines = (row(0, 1_024, 1_024), row(1, 1_030, 1_024), row(2, 2_048, 1), row(3, 2_047, 1))
    drawn = trace(tmp_path, *lines).draw(requests=None, seed=0, max_model_len=2_048)
    assert lengths_of(drawn) == [(1_024, 1_024), (2_047, 1)]
    assert drawn.skipped == {"context_length": 2}
    with pytest.raises(WorkloadError) as caught:
        trace(tmp_path, *lines, over_length="refuse").draw(
            requests=None, seed=0, max_model_len=2_048
        )
    assert "line 2: input 1030 + output 1024 tokens are more than max_model_len 2048" in str(
        caught.value
    )
    assert "over_length: skip" in caught.value.__notes__[0]


def test_a_limit_takes_the_first_in_time(tmp_path: Path) -> None:
    """The first usable rows in time are taken; over-long rows after the last one count nowhere."""
    lines = (row(9, CONTEXT), row(8), row(1, CONTEXT), row(3), row(2))
    limited = draw(trace(tmp_path, *lines, limit=2))
    assert lines_of(limited) == ["line-5", "line-4"]
    assert starts_of(limited) == [0, 1_000_000]
    assert limited.skipped == {"context_length": 1}
    assert draw(trace(tmp_path, *lines), requests=2) == limited
    assert len(draw(trace(tmp_path, *lines, limit=99)).conversations) == 3


def test_a_limit_changes_no_text(tmp_path: Path) -> None:
    """The rows within a limit have the texts that they have without it."""
    lines = [row(ms, 600, hash_ids=[ms % 3, 100 + ms]) for ms in range(9)] + [row(9, 30)]
    whole = prompts_of(draw(trace(tmp_path, *lines)))
    assert prompts_of(draw(trace(tmp_path, *lines, limit=4))) == whole[:4]


def test_rows_are_never_repeated(tmp_path: Path) -> None:
    """More requests than rows are refused with both numbers and what was left out."""
    lines = (row(0), row(1), row(2, CONTEXT))
    message = refusal_of(trace(tmp_path, *lines), requests=12)
    assert "12 requests asked for, but only 2 rows to replay" in message
    assert "context_length 1" in message
    assert "at most 2 requests" in message
    limited = refusal_of(trace(tmp_path, *lines, limit=1), requests=2)
    assert "2 requests asked for, but only 1 rows to replay, limit 1" in limited
    assert "0 requests asked for" in refusal_of(trace(tmp_path, *lines), requests=0)


def test_as_many_rows_as_are_told_can_be_drawn(tmp_path: Path) -> None:
    """What can be replayed is what `draw` gives, and one more is refused."""
    lines = (row(3), row(2), "no row", row(4, CONTEXT), row(5))
    for options, rows in (
        ({}, 3), ({"limit": 2}, 2), ({"limit": 9}, 3), ({"over_length": "refuse"}, 2),
    ):  # fmt: skip
        replay = trace(tmp_path, *lines, bad_rows="skip", **options)
        assert replay.replayable(CONTEXT) == rows
        assert len(draw(replay, requests=rows).conversations) == rows
        with pytest.raises(WorkloadError):
            draw(replay, requests=rows + 1)


def test_a_table_of_ones_own_is_told_all_its_columns(tmp_path: Path) -> None:
    """Whoever lacks a column learns of every one, of its other names, and of the unit of time."""
    message = refusal_of(csv_trace(tmp_path, b"time,tokens\n1,2\n", format="csv"))

    assert "no column input_length, output_length; found" in message
    assert "input_length or input_tokens, output_length or output_tokens" in message
    assert "with times also timestamp or timestamp_s" in message
    assert "timestamp needs time_unit" in message


# Options


@pytest.mark.parametrize(
    ("options", "piece"),
    [
        ({"format": "mooncakes"}, "did you mean mooncake?"),
        ({"format": "x"}, "format is x, expected mooncake | azure | jsonl | csv"),
        ({"over_length": "cut"}, "over_length is cut, expected skip | refuse"),
        ({"bad_rows": "keep"}, "bad_rows is keep, expected skip | refuse"),
        ({"time_unit": "min"}, "time_unit is min, expected s | ms | us | ns"),
        ({"block_tokens": 0}, "block_tokens is 0, expected at least 1"),
        ({"limit": 0}, "limit is 0, expected at least 1"),
        ({"format": "azure", "block_tokens": 16}, "azure has no block_tokens"),
        ({"format": "azure", "time_unit": "s"}, "azure has no time_unit"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any], piece: str) -> None:
    """Each option says what it may be, before any file is opened."""
    with pytest.raises(WorkloadError) as caught:
        TraceReplay(name="t", **{"format": "mooncake", "path": Path("absent"), **options})
    assert piece in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_a_description_reads_no_file() -> None:
    """The plan's line names file, form, block size and limit of a file that need not be there."""
    replay = TraceReplay(name="chat", format="mooncake", path=Path("far/conv.jsonl"), limit=1_000)
    line = "chat: trace conv.jsonl (mooncake, 512-token blocks), first 1000 rows"
    assert replay.describe() == line


def test_blocks_shrink_where_a_smaller_size_is_asked(tmp_path: Path) -> None:
    """512-token blocks replayed as 16: prompts are 1/32 as long and share the same blocks."""
    path = tmp_path / "long.jsonl"
    path.write_text(
        '{"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 9, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'
        '{"timestamp": 9, "input_length": 1536, "output_length": 5, "hash_ids": [1, 2, 4]}\n',
        encoding="utf-8",
    )

    drawn = TraceReplay(name="t", format="mooncake", path=path, block_tokens=16).draw(
        requests=None, seed=0, max_model_len=4096
    )

    prompts = [one.turns[0].prompt for one in drawn.conversations]
    assert [sum(part.tokens for part in prompt) for prompt in prompts] == [32 + 9, 1, 48]
    assert prompts[0][:2] == prompts[2][:2]
    assert any("each block of 512 tokens is one of 16 here" in note for note in drawn.notes)

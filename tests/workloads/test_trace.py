"""Trace replay: times, lengths and prefixes of published formats, and every kind of bad line."""

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
    """Return one row of a Mooncake trace; a field with value None is absent."""
    fields = {"timestamp": timestamp, "input_length": tokens, "output_length": output, **more}
    return {name: value for name, value in fields.items() if value is not None}


def trace(path: Path, *lines: dict[str, Any] | str, **options: Any) -> TraceReplay:
    """Write a trace with these lines into a folder and return its replay."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (path / "trace.jsonl").write_text(text)
    options = {"format": "mooncake", "path": path / "trace.jsonl", **options}
    return TraceReplay(name="t", **options)


def csv_trace(path: Path, content: bytes, **options: Any) -> TraceReplay:
    """Write a CSV trace into a folder and return its replay (default format: azure)."""
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
    """Return the message and notes of the error that a draw raises."""
    with pytest.raises(WorkloadError) as caught:
        draw(replay, requests)
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


# Times


def test_times_of_mooncake_are_milliseconds(tmp_path: Path) -> None:
    """A plain timestamp of a Mooncake trace is in milliseconds, counted from the first request."""
    drawn = draw(trace(tmp_path, row(1_000), row(4_052), row(28_482)))
    assert starts_of(drawn) == [0, 3_052_000_000, 27_482_000_000]
    assert drawn.skipped == {}


def test_times_of_bailian_are_seconds_and_its_blocks_are_small(tmp_path: Path) -> None:
    """Bailian traces have times in seconds and 16-token blocks; a note names the unused chat_id."""
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
    """An offset of 1.386 s is exact to the nanosecond in any unit and with any origin."""
    lines = ({**row(None), **first}, {**row(None), **second})
    replay = trace(tmp_path, *lines, **options)
    assert starts_of(draw(replay)) == [0, 1_386_000_000]


def test_unsorted_rows_are_sorted_and_noted(tmp_path: Path) -> None:
    """The smallest time becomes 0, equal times keep their order, and a note reports the sort."""
    replay = trace(tmp_path, row(500), row(900), row(700), row(500), row(100))
    drawn = draw(replay)
    assert lines_of(drawn) == ["line-5", "line-1", "line-4", "line-3", "line-2"]
    assert starts_of(drawn) == [0, *(ms * 1_000_000 for ms in (400, 400, 600, 800))]
    assert any("sorted by time" in note and "3 times" in note for note in drawn.notes)
    assert not any("sorted" in note for note in draw(trace(tmp_path, row(1), row(1))).notes)


def test_azure_rows_keep_every_digit(tmp_path: Path) -> None:
    """BOM, CR LF, seven digits, a leap day, and a last row without a line end are read exactly."""
    drawn = draw(csv_trace(tmp_path, AZURE))
    assert starts_of(drawn) == [0, 1_249_999_900, 1_250_000_100]
    assert lengths_of(drawn) == [(100, 10), (200, 20), (300, 1)]
    assert lines_of(drawn) == ["line-2", "line-3", "line-4"]
    assert prefix_hit_ceiling(prompts_of(drawn), 1) == 0
    assert any("3 of 3 trace rows have no hash_ids" in note for note in drawn.notes)


@pytest.mark.parametrize(
    "time", ["2024-02-29T00:00:01Z", "2024-02-29 02:00:01.000+02:00", "2024-02-29 00:00:01"]
)
def test_wall_times_with_and_without_a_zone(tmp_path: Path, time: str) -> None:
    """A time zone is applied, a time without a zone is UTC, and a fraction is optional."""
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    content = f"{header}2024-02-29 00:00:00.0000000,5,5\n{time},5,5\n".encode()
    assert starts_of(draw(csv_trace(tmp_path, content))) == [0, 1_000_000_000]


# Prefixes


def test_one_id_is_one_text(tmp_path: Path) -> None:
    """Rows share the tokens of their common leading ids; the last block may be partial."""
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
    """With block_tokens 16, each id is a block of 16 tokens."""
    replay = trace(tmp_path, row(0, 20, hash_ids=[4, 5]), row(1, 40, hash_ids=[4, 6, 7]))
    drawn = draw(TraceReplay(name="t", format="mooncake", path=replay.path, block_tokens=16))
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 16]
    assert "2 ids, but input_length 20 needs 1 at 512 tokens per block" in refusal_of(replay)


def test_an_id_of_two_sizes_is_noted(tmp_path: Path) -> None:
    """Rows share the shorter block of an id with two sizes, and a note names both lines."""
    replay = trace(tmp_path, row(0, 1_024, hash_ids=[1, 2]), row(1, 600, hash_ids=[1, 2]))
    drawn = draw(replay)
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 600]
    [note] = drawn.notes
    assert "hash id 2 has 88 tokens on line 2 and 512 tokens on line 1" in note


def test_rows_without_ids_have_unique_texts(tmp_path: Path) -> None:
    """Some or all rows may lack ids; a note reports how many."""
    drawn = draw(trace(tmp_path, row(0, 600), row(1, 512, hash_ids=[1]), row(2, 600)))
    assert list(shared_prefix_tokens(prompts_of(drawn))) == [0, 0, 0]
    assert any("2 of 3 trace rows have no hash_ids" in note for note in drawn.notes)


def test_the_seed_determines_texts_and_the_file_lengths(tmp_path: Path) -> None:
    """Another seed gives other texts with the same shared prefixes, lengths and times."""
    rows = [row(0, 600, hash_ids=[1, 2]), row(9, 600, hash_ids=[1, 3]), row(12, 70)]
    replay = trace(tmp_path, *rows)
    one, same, other = draw(replay, seed=1), draw(replay, seed=1), draw(replay, seed=2)
    assert one == same
    assert (lengths_of(one), starts_of(one)) == (lengths_of(other), starts_of(other))
    names = [{part.text for prompt in prompts_of(d) for part in prompt} for d in (one, other)]
    assert len(names[0]) == len(names[1]) == 4
    assert not names[0] & names[1]
    assert [len(draw_token_ids(prompt)) for prompt in prompts_of(one)] == [600, 600, 70]


def test_a_note_names_an_unused_session_field(tmp_path: Path) -> None:
    """Rows with a session field stay separate conversations, and a note reports it."""
    drawn = draw(trace(tmp_path, row(0, session="a"), row(1, session="a")))
    assert len(drawn.conversations) == 2
    assert any("trace's session is not used" in note for note in drawn.notes)


# The user's own formats


def test_own_jsonl_needs_a_time_unit_and_a_block_size(tmp_path: Path) -> None:
    """A plain timestamp needs time_unit, and hash_ids need block_tokens."""
    rows = [row(1, 20, hash_ids=[1, 2]), row(2, 16, hash_ids=[1])]
    without_unit = trace(tmp_path, *rows, format="jsonl")
    assert "line 1: the unit of timestamp is unknown" in refusal_of(without_unit)
    assert "time_unit: s | ms | us | ns" in refusal_of(without_unit)
    without_size = trace(tmp_path, *rows, format="jsonl", time_unit="s")
    assert "line 1: the number of tokens per hash id is unknown" in refusal_of(without_size)
    assert "block_tokens" in refusal_of(without_size)
    complete = draw(trace(tmp_path, *rows, format="jsonl", time_unit="s", block_tokens=16))
    assert starts_of(complete) == [0, 1_000_000_000]
    assert list(shared_prefix_tokens(prompts_of(complete))) == [0, 16]


def test_a_set_of_lengths_needs_no_times(tmp_path: Path) -> None:
    """A CSV of lengths is replayed in file order, and a note reports that it has no times."""
    drawn = draw(
        csv_trace(tmp_path, b"input_tokens,output_tokens\n74,918\n290,905\n", format="csv")
    )
    assert lengths_of(drawn) == [(74, 918), (290, 905)]
    assert starts_of(drawn) == [None, None]
    assert any("no times" in note for note in drawn.notes)


def test_a_row_without_a_time_among_others_is_bad(tmp_path: Path) -> None:
    """A row without a time is a fault when another row has a time."""
    replay = trace(
        tmp_path, row(None, timestamp_s=3), row(None), row(None, timestamp_s=2), format="jsonl"
    )
    assert "line 2: no timestamp, but other rows have one" in refusal_of(replay)


# Lines without a valid request

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
    ('{"timestamp": 5, "input_length":', "bad_json", "JSON: Expecting value at column 33"),
    ("[" * 100_000, "bad_json", "not valid JSON"),
    ("1" * 5_000, "bad_json", "not valid JSON"),
    ('["not", "an", "object"]', "not_an_object", 'found ["not", "an", "object"]'),
    (row(tokens=20, hash_ids=[1, 2]), "blocks_mismatch", "2 ids, but input_length 20 needs 1"),
    (row(tokens=1_025, hash_ids=[1, 2]), "blocks_mismatch", "input_length 1025 needs 3"),
    (row(hash_ids=[]), "blocks_mismatch", "0 ids"),
    (row(hash_ids=[1.5]), "not_an_integer", "hash_ids contains 1.5"),
    (row(hash_ids=[2**63]), "not_an_integer", "hash_ids contains 9223372036854775808"),
    (row(hash_ids=7), "not_an_integer", "hash_ids is 7"),
]


@pytest.mark.parametrize(
    ("line", "reason", "piece"), BAD_LINES, ids=[f"{bad[1]}-{bad[2][:20]}" for bad in BAD_LINES]
)
def test_a_bad_line_is_named_or_counted(
    tmp_path: Path, line: dict[str, Any] | str, reason: str, piece: str
) -> None:
    """A bad line is refused with file, physical line and value, or skipped and counted."""
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
    """The error names five lines and counts the rest."""
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
        ("2024-02-29 00:00:00.1,5", "wrong_columns", "2 values, but the header has 3"),
        ("2024-02-29 00:00:00.1,,5", "missing", "no ContextTokens"),
        ("2024-02-29 00:00:00.1,5.5,5", "not_an_integer", "ContextTokens is 5.5"),
        ("2024-02-29 00:00:00.1,many,5", "not_an_integer", 'ContextTokens is "many"'),
        ("2024-02-29 00:00:00.1,5,0", "zero_output", "GeneratedTokens is 0"),
        ("2024-02-30 00:00:00.1,5,5", "bad_time", 'TIMESTAMP is "2024-02-30 00:00:00.1"'),
        ("1709164800,5,5", "bad_time", "TIMESTAMP is 1709164800"),
        ('2024-02-29 00:00:00.1,"5,5', "bad_csv", "not valid CSV"),
    ],
)
def test_a_bad_csv_line_is_named_or_counted(
    tmp_path: Path, line: str, reason: str, piece: str
) -> None:
    """The header of a CSV is line 1, so the row after three good ones is line 5."""
    content = AZURE + b"\r\n" + line.encode()
    message = refusal_of(csv_trace(tmp_path, content))
    assert "trace.csv: line 5: " in message
    assert piece in message
    drawn = draw(csv_trace(tmp_path, content, bad_rows="skip"))
    assert (drawn.skipped, len(drawn.conversations)) == ({reason: 1}, 3)


# Files without a trace


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    """The error for a wrong format or a missing column names what is expected."""
    replay = csv_trace(tmp_path, AZURE)
    wrong = TraceReplay(name="t", format="mooncake", path=replay.path)
    assert "line 1: not valid JSON" in refusal_of(wrong)
    assert "if the format is not mooncake, set format: mooncake | azure" in refusal_of(wrong)
    columns = csv_trace(tmp_path, b"\nTIMESTAMP,Context,GeneratedTokens\n")
    refusal = refusal_of(columns)
    assert "trace.csv: line 2: no column ContextTokens; found" in refusal
    assert "required columns: TIMESTAMP, ContextTokens, GeneratedTokens" in refusal
    assert "line 1: not valid CSV" in refusal_of(csv_trace(tmp_path, b'"TIMESTAMP'))
    assert "line 1: not valid JSON" in refusal_of(
        TraceReplay(name="t", format="mooncake", path=_binary(tmp_path))
    )


def _binary(path: Path) -> Path:
    (path / "trace.gz").write_bytes(b"\x1f\x8b\x08\x00\xff\xfe\n\x00")
    return path / "trace.gz"


@pytest.mark.parametrize("content", [b"", b"\n  \n"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file without a line is refused in JSON and in CSV formats."""
    assert "trace.csv: line 1: no column" in refusal_of(csv_trace(tmp_path, content))
    assert "the file is empty" in refusal_of(csv_trace(tmp_path, content))
    assert "trace.jsonl: no row to replay" in refusal_of(trace(tmp_path, content.decode()))
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    assert "trace.csv: no row to replay" in refusal_of(csv_trace(tmp_path, header))


def test_no_row_left_is_refused_with_the_reasons(tmp_path: Path) -> None:
    """The error for a trace without a usable row lists why rows were skipped."""
    rows = (row(tokens=0), row(tokens=CONTEXT))
    message = refusal_of(trace(tmp_path, *rows, bad_rows="skip"))
    assert "no row to replay (skipped: zero_input 1, context_length 1)" in message
    assert "raise max_model_len if model and memory allow it (under `base` in a sweep" in message
    assert "fix the file" in refusal_of(trace(tmp_path, row(tokens=0), bad_rows="skip"))


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    """The error names a path that does not exist or is a folder."""
    for path in (tmp_path / "absent.jsonl", tmp_path):
        message = refusal_of(TraceReplay(name="t", format="mooncake", path=path))
        assert f"{path}: cannot be read: " in message


# Number of rows


def test_rows_beyond_the_context_are_counted_or_refused(tmp_path: Path) -> None:
    """Input plus output equal to the limit is allowed; longer rows are skipped or refused."""
    lines = (row(0, 1_024, 1_024), row(1, 1_030, 1_024), row(2, 2_048, 1), row(3, 2_047, 1))
    drawn = trace(tmp_path, *lines).draw(requests=None, seed=0, max_model_len=2_048)
    assert lengths_of(drawn) == [(1_024, 1_024), (2_047, 1)]
    assert drawn.skipped == {"context_length": 2}
    with pytest.raises(WorkloadError) as caught:
        trace(tmp_path, *lines, over_length="refuse").draw(
            requests=None, seed=0, max_model_len=2_048
        )
    message = "line 2: input 1030 + output 1024 tokens exceed max_model_len 2048"
    assert message in str(caught.value)
    assert "over_length: skip" in caught.value.__notes__[0]


def test_a_limit_takes_the_first_in_time(tmp_path: Path) -> None:
    """The first usable rows in time order are replayed; later over-length rows are not counted."""
    lines = (row(9, CONTEXT), row(8), row(1, CONTEXT), row(3), row(2))
    limited = draw(trace(tmp_path, *lines, limit=2))
    assert lines_of(limited) == ["line-5", "line-4"]
    assert starts_of(limited) == [0, 1_000_000]
    assert limited.skipped == {"context_length": 1}
    assert draw(trace(tmp_path, *lines), requests=2) == limited
    assert len(draw(trace(tmp_path, *lines, limit=99)).conversations) == 3


def test_a_limit_changes_no_text(tmp_path: Path) -> None:
    """The rows within a limit have the same texts as without the limit."""
    lines = [row(ms, 600, hash_ids=[ms % 3, 100 + ms]) for ms in range(9)] + [row(9, 30)]
    whole = prompts_of(draw(trace(tmp_path, *lines)))
    assert prompts_of(draw(trace(tmp_path, *lines, limit=4))) == whole[:4]


def test_rows_are_never_repeated(tmp_path: Path) -> None:
    """More requests than rows are refused with both numbers and the skipped rows."""
    lines = (row(0), row(1), row(2, CONTEXT))
    message = refusal_of(trace(tmp_path, *lines), requests=12)
    assert "requests is 12, but the trace has only 2 rows to replay" in message
    assert "context_length 1" in message
    assert "set requests to at most 2" in message
    limited = refusal_of(trace(tmp_path, *lines, limit=1), requests=2)
    assert "requests is 2, but the trace has only 1 rows to replay, limit 1" in limited
    assert "requests is 0, expected" in refusal_of(trace(tmp_path, *lines), requests=0)


def test_replayable_is_the_largest_number_that_can_be_drawn(tmp_path: Path) -> None:
    """`draw` returns as many rows as `replayable` reports, and refuses one more."""
    lines = (row(3), row(2), "no row", row(4, CONTEXT), row(5))
    for options, rows in (
        ({}, 3), ({"limit": 2}, 2), ({"limit": 9}, 3), ({"over_length": "refuse"}, 2),
    ):  # fmt: skip
        replay = trace(tmp_path, *lines, bad_rows="skip", **options)
        assert replay.replayable(CONTEXT) == rows
        assert len(draw(replay, requests=rows).conversations) == rows
        with pytest.raises(WorkloadError):
            draw(replay, requests=rows + 1)


def test_a_missing_column_error_lists_all_columns(tmp_path: Path) -> None:
    """The error lists every column, its alternative names and the need for a time unit."""
    message = refusal_of(csv_trace(tmp_path, b"time,tokens\n1,2\n", format="csv"))

    assert "no column input_length, output_length; found" in message
    assert "input_length or input_tokens, output_length or output_tokens" in message
    assert "optional: timestamp or timestamp_s" in message
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
        ({"format": "azure", "time_unit": "s"}, "azure has wall-clock times and no time_unit"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], piece: str) -> None:
    """The error lists the valid values of an option, before any file is opened."""
    with pytest.raises(WorkloadError) as caught:
        TraceReplay(name="t", **{"format": "mooncake", "path": Path("absent"), **options})
    assert piece in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_a_description_reads_no_file() -> None:
    """The plan's line names file, format, block size and limit of a file that may be missing."""
    replay = TraceReplay(name="chat", format="mooncake", path=Path("far/conv.jsonl"), limit=1_000)
    line = "chat: trace conv.jsonl (mooncake, 512-token blocks), first 1000 rows"
    assert replay.describe() == line


def test_blocks_shrink_to_a_smaller_block_size(tmp_path: Path) -> None:
    """With 512-token blocks shrunk to 16, prompts are 1/32 as long and share the same blocks."""
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
    assert any("blocks shrink from 512 to 16 tokens" in note for note in drawn.notes)

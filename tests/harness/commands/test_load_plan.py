"""What `harness load` is told on the line: refused where it would be ignored, or cannot be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from raw_server import raw_server

from harness.cli import _parser, main

NOBODY = ("load", "http://127.0.0.1:9", "--model", "m", "--wait", "0.1 s")
TRACE = ("--workload", "trace:t.jsonl")
CHATS = ("--workload", "multi-turn")
RATE = ("--rate", "2", "--duration", "9")


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said of an order that is refused before any server is asked."""
    try:
        code = main([*NOBODY, *words])
    except SystemExit as usage:
        code = int(usage.code or 0)
    said = capsys.readouterr().err
    assert code == 2
    assert "no server answered" not in said
    return said


def test_a_request_has_half_an_hour_unless_the_user_gives_it_another_time() -> None:
    """A server that never ends an answer does not keep a load for ever."""
    words = ["load", "http://127.0.0.1:9", "--model", "m"]

    times = [_parser().parse_args([*words, *more]).timeout for more in ([], ["--timeout", "9"])]

    assert times == ["30 min", "9"]


@pytest.mark.parametrize("option", ["--timeout", "--wait", "--duration"])
@pytest.mark.parametrize("time", ["0", "0 s", "0.0", "-1 s", "400000000", "soon", "", "1 week"])
def test_a_time_that_is_none_is_refused(
    option: str, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Zero, less than that, and longer than anybody waits."""
    words = ("--rate", "1") if option == "--duration" else ()
    if option == "--wait":
        code = main(["load", "http://127.0.0.1:9", "--model", "m", f"{option}={time}"])
        assert code == 2
        assert "--wait: " in capsys.readouterr().err
    else:
        assert f"{option}: " in refusal(capsys, *words, f"{option}={time}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--turns", "3"), "--turns says nothing of --workload shared-prefix"),
        ((*CHATS, "--block-tokens", "16"), "--block-tokens says nothing of --workload multi-turn"),
        (("--bad-rows", "skip"), "--bad-rows says nothing of"),
        (("--format", "azure"), "--format says nothing of"),
        ((*TRACE, "--time-unit", "ms", "--prompt-tokens", "9"), "--prompt-tokens says nothing of"),
        ((*TRACE, "--format", "jsonl", "--output-tokens", "9"), "--output-tokens says nothing of"),
        (("--arrivals", "trace"), "--workload trace:PATH"),
        ((*TRACE, "--arrivals", "trace", *RATE), "--rate does not go with --arrivals trace"),
        ((*TRACE, "--arrivals", "trace", "--concurrency", "2"), "--concurrency does not go with"),
        (("--speedup", "2"), "--speedup belongs to a trace's own times"),
        (("--api", "chat", "--tokenizer", "."), "--tokenizer is for prompts of token ids"),
        (("--requests", "1000001"), "at most 1,000,000 requests"),
        (("--warmup", "5000000"), "at most 1,000,000 requests"),
        (("--rate", "1e9", "--duration", "1"), "at most 1,000,000 requests"),
        ((*CHATS, "--turns", "20000"), "at most 10,000 turns"),
        (("--seed", "1", "--seed", "2"), "--seed is given twice"),
        (("--model", "n"), "--model is given twice"),
        (("--workload", "shared-prefix:x"), "expected shared-prefix, multi-turn or trace:PATH"),
        (("--workload", "trace:"), "expected shared-prefix, multi-turn or trace:PATH"),
    ],
)
def test_what_would_be_ignored_or_cannot_be_is_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody shall take a figure for that of an option that did nothing."""
    assert said in refusal(capsys, *words)


@pytest.mark.parametrize("end", ["?key=secret", "/v1?key=secret", "#secret"])
def test_an_address_with_a_query_is_refused_and_not_repeated(
    end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request would carry it, and it may hold a key."""
    code = main(["load", f"http://127.0.0.1:9{end}", "--model", "m"])

    said = capsys.readouterr().err
    assert code == 2
    assert "query or a fragment" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "no vocabulary at model.vocab"),
        ('{"model": "bpe"}', "no vocabulary at model.vocab"),
        ('{"model": {"vocab": {}}}', "no vocabulary at model.vocab"),
        ("[" * 100_000, "no tokenizer was found"),
        ("{", "no tokenizer was found"),
    ],
)
def test_what_is_no_tokenizer_is_said_so(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other JSON has no vocabulary; words of Python's own help nobody."""
    file = tmp_path / "tokenizer.json"
    file.write_text(text, encoding="utf-8")

    words = refusal(capsys, "--tokenizer", str(tmp_path))

    assert said in words
    assert "indices must be" not in words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--concurrency", "200"),
            "--concurrency 200: 100 requests are asked, in 100 conversations",
        ),
        (("--concurrency", "9", *CHATS, "--requests", "12"), "in 3 conversations"),
        (
            ("--rate", "0.1", "--duration", "2 s"),
            "seed 0 draws no start within 2 s at 0.1 a second",
        ),
        (("--rate", "2", "--duration", "1 ms", "--seed", "5"), "or take another seed"),
        (("--prompt-tokens", "2000000", "--requests", "2"), "its requests are longer than"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what would do."""
    with raw_server() as server:
        code = main(["load", server.url, "--model", "m", *words])
        asked = list(server.bodies)

    told = capsys.readouterr()
    assert (code, asked, told.out) == (2, [], "")
    assert said in told.err


def trace(folder: Path, *rows: dict[str, object]) -> str:
    """A workload of these rows."""
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return f"trace:{path}"


def rows(count: int, gap_ms: int) -> list[dict[str, object]]:
    """Rows of a trace without block ids, one after the other."""
    return [
        {"timestamp_ms": gap_ms * n, "input_tokens": 8, "output_tokens": 2} for n in range(count)
    ]


@pytest.mark.parametrize(("speedup", "span_s"), [((), 0.6), (("--speedup", "3"), 0.2)])
def test_a_trace_is_replayed_at_its_own_times(
    speedup: tuple[str, ...], span_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its rows, each due when the trace says, or so many times faster."""
    words = ("--workload", trace(tmp_path, *rows(7, 100)), "--arrivals", "trace", *speedup)
    with raw_server() as server:
        main(["load", server.url, "--model", "m", "--json", *words])

    (run,) = json.loads(capsys.readouterr().out)["runs"]
    load, metrics = run["load"], run["metrics"]
    assert (load["mode"], load["speedup"]) == ("trace", 3.0 if speedup else 1.0)
    assert metrics["completed"] == 7
    assert metrics["scheduled_ttft_ms"] is not None
    assert span_s - 0.01 <= run["counts"]["duration_s"] < span_s + 5


def test_a_trace_in_closed_loop_is_asked_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its rows where no number of requests is given, and else the first so many."""
    workload = trace(tmp_path, *rows(7, 100))
    words = ("--workload", workload, "--json")
    with raw_server() as server:
        main(["load", server.url, "--model", "m", *words])
        whole = json.loads(capsys.readouterr().out)["runs"][0]
        main(["load", server.url, "--model", "m", *words, "--arrivals", "trace", "--requests", "3"])
        first = json.loads(capsys.readouterr().out)["runs"][0]

    assert (whole["load"]["requests"], whole["metrics"]["completed"]) == (7, 7)
    assert (first["load"]["limit"], first["metrics"]["completed"]) == (3, 3)


@pytest.mark.parametrize(
    ("row", "words", "said"),
    [
        ({"timestamp_ms": 1, "input_tokens": 0, "output_tokens": 2}, (), "--bad-rows skip"),
        ({"input_tokens": 4, "output_tokens": 2}, ("--arrivals", "trace"), "has no times"),
        ({"x": 1}, ("--format", "nope"), "expected mooncake | azure | jsonl"),
        ({"timestamp": 1, "input_tokens": 4, "output_tokens": 2}, (), "time_unit: s | ms"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_mended_by_options_that_there_are(
    row: dict[str, object],
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each remedy is one that this command has."""
    with raw_server() as server:
        code = main(
            ["load", server.url, "--model", "m", "--workload", trace(tmp_path, row), *words]
        )
    told = capsys.readouterr().err

    assert code == 2
    assert said in told


def test_bad_rows_are_left_out_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And counted."""
    bad: dict[str, object] = {"timestamp_ms": 5, "input_tokens": 0, "output_tokens": 2}
    words = ("--workload", trace(tmp_path, *rows(4, 1), bad), "--bad-rows", "skip", "--json")
    with raw_server() as server:
        main(["load", server.url, "--model", "m", *words])

    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["metrics"]["completed"], run["skipped_rows"]) == (4, {"zero_input": 1})


def test_the_help_says_what_is_meant(capsys: pytest.CaptureFixture[str]) -> None:
    """Half of a prompt is shared; a plain number is seconds."""
    with pytest.raises(SystemExit):
        main(["load", "--help"])

    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "all prompts share the first half" in text
    assert "a plain number is seconds" in text


def test_a_report_of_a_load_knows_no_hardware(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And says so, in place of None."""
    out = tmp_path / "kept"
    words = ("--requests", "3", "--warmup", "2", "--out", str(out))
    with raw_server() as server:
        main(["load", server.url, "--model", "m", *words])
    main(["report", str(out)])

    text = capsys.readouterr().out
    (run,) = json.loads((out / "summary.json").read_text(encoding="utf-8"))["runs"]
    assert "m on unknown hardware" in text
    assert "None" not in text
    assert run["load"]["warmup_requests"] == 2
    assert run["load"]["warmup"] is None

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from harness.adapters.attached.server import attach
from harness.adapters.base import EngineError
from harness.adapters.http_queries import query
from harness.reference.bodies import read_completion, take_request
from harness.reference.log import LogWriter, ReferenceLog, SentAnswer, Tick, read_reference_log
from harness.reference.process import ReferenceProcess, reference_process
from harness.reference.server import send_unpaced

pytestmark = pytest.mark.alone
END = b"0\r\n\r\n"
ASKED = {"model": "reference", "prompt": [1, 2, 3], "max_tokens": 20, "stream": True}
TTFT_MS, ITL_MS = 30.0, 5.0


@contextmanager
def running(**options: Any) -> Iterator[tuple[ReferenceProcess, int]]:
    """Start a server and return it with its port."""
    with reference_process(ttft_ms=TTFT_MS, itl_ms=ITL_MS, **options) as server:
        yield server, int(server.target().url.rpartition(":")[2])


def request_bytes(path: str = "/v1/completions", **fields: Any) -> bytes:
    body = json.dumps({**ASKED, **fields}).encode()
    return f"POST {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def streamed(sock: socket.socket, request: bytes) -> list[tuple[int, bytes]]:
    """Send a request, and return each read of its stream with the time when it returned."""
    sock.sendall(request)
    reads: list[tuple[int, bytes]] = []
    while not (reads and reads[-1][1].endswith(END)):
        data = sock.recv(1 << 16)
        assert data, "the server closed the connection"
        reads.append((time.perf_counter_ns(), data))
    return reads


def events(reads: list[tuple[int, bytes]]) -> list[Any]:
    """Return the JSON of each event, and `[DONE]` as text."""
    found = re.findall(rb"data: (.*)\n\n", b"".join(data for _, data in reads))
    return ["[DONE]" if one == b"[DONE]" else json.loads(one) for one in found]


def token_times_ns(reads: list[tuple[int, bytes]]) -> list[int]:
    """Return the time when each event with text was read."""
    return [
        at_ns for at_ns, data in reads for _ in range(data.count(b'"text":" token"'))
    ]  # no event is torn: each is one small send


def test_logged_times_are_correct() -> None:
    """A client receives each token after its logged send time, and soon after it."""
    with running() as (server, port), connected(port) as sock:
        before_ns = time.perf_counter_ns()
        runs = [streamed(sock, request_bytes()) for _ in range(3)]
        log = server.log()

    errors_ms = []
    for reads, answer in zip(runs, log.answers, strict=True):
        assert before_ns < answer.received_ns < answer.sent_ns[0]
        seen_ns = token_times_ns(reads)
        assert len(seen_ns) == len(answer.sent_ns) == 20
        errors_ms += [
            (seen - sent) / 1e6 for seen, sent in zip(seen_ns, answer.sent_ns, strict=True)
        ]
        before_ns = answer.sent_ns[-1]
    assert min(errors_ms) > 0
    assert statistics.median(errors_ms) < 4  # 0.1 on an idle machine


def test_it_keeps_its_tick() -> None:
    """All streams send tokens in ticks of one interval, the first after the TTFT."""
    with running() as (server, port):
        socks = [connected(port) for _ in range(8)]
        for sock in socks:
            sock.sendall(request_bytes())
        for sock in socks:
            seen = b""
            while not seen.endswith(END):
                seen += sock.recv(1 << 16)
            sock.close()
        log = server.log()

    dues_ns = [tick.due_ns for tick in log.ticks]
    assert {(due - dues_ns[0]) % round(ITL_MS * 1e6) for due in dues_ns} == {0}
    assert sum(tick.tokens for tick in log.ticks) == 8 * 20
    assert statistics.median(log.lateness_ns()) < 4e6
    assert all(tick.due_ns <= tick.begun_ns <= tick.ended_ns for tick in log.ticks)
    for answer in log.answers:
        waits_ms = (answer.sent_ns[0] - answer.received_ns) / 1e6
        assert waits_ms >= TTFT_MS
    assert (
        statistics.median((answer.sent_ns[0] - answer.received_ns) / 1e6 for answer in log.answers)
        < TTFT_MS + 2 * ITL_MS + 5
    )


def test_completions_have_one_token_per_event_and_a_normal_end() -> None:
    """A stream has the requested tokens, an id, a finish reason with the last token, and [DONE]."""
    with running() as (_, port), connected(port) as sock:
        first = events(streamed(sock, request_bytes(ignore_eos=True)))
        second = events(streamed(sock, request_bytes(max_tokens=1)))

    assert [one["id"] for one in first[:-1]] == ["cmpl-0"] * 20
    assert [one["choices"][0]["text"] for one in first[:-1]] == [" token"] * 20
    assert [one["choices"][0]["finish_reason"] for one in first[:-1]] == [None] * 19 + ["length"]
    assert first[-1] == second[-1] == "[DONE]"
    assert [one["choices"][0]["finish_reason"] for one in second[:-1]] == ["length"]
    assert second[0]["id"] == "cmpl-1"  # on the same connection


def test_usage_is_sent_if_requested() -> None:
    """Usage is at the end or in every event; prompt tokens are the ids, or the words of a text."""
    options = {"include_usage": True}
    running_options = {**options, "continuous_usage_stats": True}
    with running() as (_, port), connected(port) as sock:
        plain = events(streamed(sock, request_bytes()))
        ended = events(streamed(sock, request_bytes(stream_options=options)))
        counted = events(
            streamed(sock, request_bytes(stream_options=running_options, prompt="two words"))
        )

    assert not any("usage" in one for one in plain[:-1])
    assert ended[-2]["choices"] == []
    assert ended[-2]["usage"] == {
        "prompt_tokens": 3, "total_tokens": 23, "completion_tokens": 20,
    }  # fmt: skip
    assert not any("usage" in one for one in ended[:-2])
    assert [one["usage"]["completion_tokens"] for one in counted[:-1]] == [*range(1, 21), 20]
    assert {one["usage"]["prompt_tokens"] for one in counted[:-1]} == {2}


def test_running_usage_can_be_left_out() -> None:
    """With `--usage-at-end` no running usage is sent, even if the request contains it."""
    asked = {"include_usage": True, "continuous_usage_stats": True}
    with running(usage_at_end=True) as (_, port), connected(port) as sock:
        seen = events(streamed(sock, request_bytes(stream_options=asked)))

    assert [("usage" in one) for one in seen[:-1]] == [False] * 20 + [True]


def test_a_chat_begins_with_its_role() -> None:
    """The role has its own event, which contains no token."""
    chat = {"messages": [{"role": "user", "content": "one two three"}], "max_completion_tokens": 4}
    with running() as (server, port), connected(port) as sock:
        seen = events(streamed(sock, request_bytes("/v1/chat/completions", **chat)))
        log = server.log()

    deltas = [one["choices"][0]["delta"] for one in seen[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, *[{"content": " token"}] * 4]
    assert seen[0]["object"] == "chat.completion.chunk"
    assert [(one.response_id, one.asked_tokens) for one in log.answers] == [("chatcmpl-0", 4)]


def test_a_request_without_streaming_gets_the_whole_answer() -> None:
    """A request without `stream` is answered at once and has no token times."""
    with running() as (server, port):
        url = f"http://127.0.0.1:{port}"
        asked = {**ASKED, "stream": False}
        answer = query(url, "/v1/completions", asked, timeout_s=10).json()
        chat = query(url, "/v1/chat/completions", {**asked, "messages": []}, timeout_s=10).json()
        log = server.log()

    assert answer["choices"][0]["text"] == " token" * 20
    assert answer["usage"]["completion_tokens"] == 20
    assert chat["choices"][0]["message"]["content"] == " token" * 20
    assert log.answers == []


def test_it_can_be_attached_to() -> None:
    """The server reports its version, its kind (simulated) and its model; it has no metrics."""
    with running() as (server, port):
        url = f"http://127.0.0.1:{port}"
        attached = attach(url, "reference")
        with pytest.raises(EngineError, match="does not serve 'other'"):
            attach(url, "other")
        health = query(url, "/health", timeout_s=10)
        server.stop()

    assert attached.engine_kind == "simulated"
    assert attached.max_model_len == 131_072
    assert "ignore_eos" in attached.transport.fields
    assert health.status == 200


@pytest.mark.parametrize(
    ("request_text", "status", "expected"),
    [
        (request_bytes(max_tokens=0), 400, "max_tokens"),
        (request_bytes(max_tokens="many"), 400, "max_tokens"),
        (request_bytes(prompt=None), 400, "not a completion request"),
        (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{]", 400, "not a completion"),
        (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "Length"),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 404, "/metrics"),
        (b"nonsense\r\n\r\n", 404, "nonsense"),
    ],
)
def test_what_it_cannot_answer_is_refused(request_text: bytes, status: int, expected: str) -> None:
    """The error contains the problem, and the server continues."""
    with running() as (_, port), connected(port) as sock:
        sock.sendall(request_text)
        refused = sock.recv(1 << 16).decode()
        after = events(streamed(sock, request_bytes()))

    assert refused.startswith(f"HTTP/1.1 {status} ")
    assert expected in refused
    assert len(after) == 21


def test_requests_in_pieces_and_in_a_row_are_answered_in_order() -> None:
    """A request may arrive byte by byte, wait for 100 Continue, or follow another one."""
    with running() as (_, port), connected(port) as sock:
        text = request_bytes(max_tokens=2)
        for at in range(0, len(text), 40):
            sock.sendall(text[at : at + 40])
            time.sleep(0.002)
        pieces = events(streamed(sock, b""))
        row = events(streamed(sock, text + text))
        while len(row) < 6:
            row += events(streamed(sock, b""))
        head, _, body = text.partition(b"\r\n\r\n")
        sock.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        word = sock.recv(100)
        waited = events(streamed(sock, body))

    assert [len(one) for one in (pieces, row, waited)] == [3, 6, 3]
    assert [one["id"] for one in row if one != "[DONE]"] == ["cmpl-1"] * 2 + ["cmpl-2"] * 2
    assert word == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_a_client_that_disconnects_is_logged() -> None:
    """Its answer is in the log with the sent tokens; other answers are complete."""
    with running() as (server, port), connected(port) as sock:
        with connected(port) as leaving:
            leaving.sendall(request_bytes(max_tokens=1000))
            leaving.recv(10)
            time.sleep(0.1)
        seen = events(streamed(sock, request_bytes()))
        log = server.log()

    assert len(seen) == 21
    cut = next(answer for answer in log.answers if answer.asked_tokens == 1000)
    assert 0 < len(cut.sent_ns) < 1000
    assert [len(one.sent_ns) for one in log.answers if one.asked_tokens == 20] == [20]


def test_a_client_that_does_not_read_gets_the_whole_answer_later() -> None:
    """The server buffers what the socket does not accept, and logs it; no other stream waits."""
    model = "m" * 30_000  # so that the socket is full after some tokens
    with running() as (server, port), connected(port) as other:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(20)
        sock.connect(("127.0.0.1", port))
        sock.sendall(request_bytes(model=model, max_tokens=200))
        prompt = [events(streamed(other, request_bytes())) for _ in range(10)]
        reads = streamed(sock, b"")
        sock.close()
        log = server.log()

    assert [len(one) for one in prompt] == [21] * 10
    assert len(events(reads)) == 201
    assert [one.asked_tokens for one in log.answers if one.held] == [200]


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stdin"])
def test_it_ends_on_signals_with_a_complete_log(how: str, tmp_path: Path) -> None:
    """After SIGTERM, Ctrl-C or the end of stdin the log contains everything that was sent."""
    log_path = tmp_path / "log"
    process = subprocess.Popen(
        [
            sys.executable, "-P", "-m", "harness.reference.server", "--end-with-stdin",
            "--log", str(log_path), "--ttft-ms", "5", "--itl-ms", "5",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdin
    assert process.stdout
    try:
        with connected(int(process.stdout.readline())) as sock:
            sock.sendall(request_bytes(max_tokens=10_000))
            sock.recv(10)
            time.sleep(0.1)
            if how == "stdin":
                process.stdin.close()
            else:
                process.send_signal(getattr(signal, how))
            code = process.wait(10)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    log = read_reference_log(log_path)
    assert code == 0
    assert [answer.response_id for answer in log.answers] == ["cmpl-0"]
    assert 0 < len(log.answers[0].sent_ns) == sum(tick.tokens for tick in log.ticks)


def test_it_stays_on_the_core_it_was_given() -> None:
    """`--cpu` pins the server."""
    core = max(os.sched_getaffinity(0))
    with running(cpu=core) as (server, _):
        assert os.sched_getaffinity(server.pid) == {core}


def test_a_server_that_cannot_start_or_dies_is_an_error() -> None:
    """The error contains the last line of stderr, and no process is left."""
    with (
        reference_process(ttft_ms=1, itl_ms=1, cpu=100_000) as server,
        pytest.raises(EngineError, match="did not start") as caught,
    ):
        server.target()
    assert "last line: " in caught.value.__notes__[0]

    with running() as (server, _):
        os.kill(server.pid, signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(EngineError, match="ended unexpectedly"):
            server.log()


def test_the_server_imports_nothing_heavy() -> None:
    """The server process imports no other libraries, so it starts fast."""
    code = "import sys, harness.reference.server; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    heavy = {"asyncio", "numpy", "uvloop", "pydantic", "rich", "ssl"}
    assert not heavy & set(done.stdout.split())


def test_a_log_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Reading returns exact times, and answers without a token."""
    path = tmp_path / "log"
    answers = [
        SentAnswer(response_id="cmpl-0", asked_tokens=3, received_ns=1, sent_ns=[5, 9, 12],
                   held=True),
        SentAnswer(response_id="cmpl-1", asked_tokens=3, received_ns=2, sent_ns=[], held=False),
    ]  # fmt: skip
    ticks = [Tick(4, 4, 6, 1), Tick(8, 9, 10, 1)]
    with path.open("w", encoding="utf-8") as file:
        writer = LogWriter(file, ttft_ns=4, itl_ns=4)
        writer.answers += answers
        writer.ticks += ticks
        writer.flush()
        writer.flush()  # nothing new

    assert read_reference_log(path) == ReferenceLog(
        ttft_ns=4, itl_ns=4, answers=answers, ticks=ticks
    )
    for text in ("", "{}\n", '{"reference_log": 0}\n', "not JSON\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="log"):
            read_reference_log(path)


def test_lateness_counts_every_tick_that_was_due() -> None:
    """With an interval of 10, a tick that is 25 late counts as three late ticks."""
    ticks = [Tick(0, 1, 2, 1), Tick(10, 35, 36, 1), Tick(40, 40, 41, 1)]
    log = ReferenceLog(ttft_ns=0, itl_ns=10, answers=[], ticks=ticks)

    assert log.lateness_ns() == [1, 25, 15, 5, 0]


def test_the_time_at_a_token_ends_with_the_next_or_the_tick() -> None:
    """The time between two ticks does not count for a token."""
    answers = [
        SentAnswer(response_id="a", asked_tokens=2, received_ns=0, sent_ns=[1, 11], held=False),
        SentAnswer(response_id="b", asked_tokens=1, received_ns=0, sent_ns=[4], held=False),
    ]
    ticks = [Tick(0, 0, 6, 2), Tick(10, 10, 18, 1)]
    log = ReferenceLog(ttft_ns=0, itl_ns=10, answers=answers, ticks=ticks)

    assert log.sending_ns() == {1: 3, 4: 2, 11: 7}


def test_only_complete_requests_are_removed_from_the_buffer() -> None:
    """The following bytes stay in the buffer, and the path has no query."""
    whole = request_bytes("/v1/completions?x=1", max_tokens=7)
    buffer = bytearray(whole[:-1])

    assert take_request(buffer) is None
    assert bytes(buffer) == whole[:-1]
    buffer += whole[-1:] + b"GET /"
    request = take_request(buffer)
    assert request is not None
    assert (request.method, request.path) == ("POST", "/v1/completions")
    assert bytes(buffer) == b"GET /"
    assert read_completion(request, 4, running_usage=True).tokens == 7


def test_the_log_is_written_line_by_line() -> None:
    """Each line is one JSON document with the documented names."""
    file = StringIO()
    writer = LogWriter(file, ttft_ns=1, itl_ns=2)
    writer.answers.append(
        SentAnswer(response_id="cmpl-7", asked_tokens=2, received_ns=3, sent_ns=[4, 6], held=False)
    )
    writer.flush()

    head, answer = map(json.loads, file.getvalue().splitlines())
    assert head["itl_ns"] == 2
    assert answer == {
        "id": "cmpl-7", "tokens": 2, "t_recv_ns": 3, "t_first_ns": 4, "t_last_ns": 6,
        "gaps_ns": [2], "held": False,
    }  # fmt: skip


def test_the_kernel_does_not_pace_the_tokens() -> None:
    """Connections to the server use Reno, whatever the default of the system."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        send_unpaced(listener)
        with connected(listener.getsockname()[1]), listener.accept()[0] as accepted:
            name = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)

    assert name.rstrip(b"\0") == b"reno"

"""The client seam: which failures are the network's, and a scripted client that is exact."""

from __future__ import annotations

import asyncio
import errno
import socket

import pytest

from harness.client.base import Request, failed_record, network_error_kind
from harness.client.scripted import Script, ScriptedAnswer, ScriptedClient, always, even_answer
from harness.results.store.records import RequestRecord
from harness.timing.clock import MonotonicClock, VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Segment

MS = 1_000_000


def a_request(output_tokens: int = 5) -> Request:
    """One request of 100 + 20 prompt tokens."""
    return Request(
        request_id="c00000-t00",
        conversation="a",
        turn=0,
        prompt=(Segment(1, 100), Segment(2, 20)),
        output_tokens=output_tokens,
    )


def send_one(script: Script, *, at_ns: int = 0, scheduled_ns: int = 0) -> RequestRecord:
    """Send one request at `at_ns` of virtual time and return its record."""

    async def main() -> RequestRecord:
        clock = VirtualClock(virtual_loop())
        await clock.sleep_until_ns(at_ns)
        return await ScriptedClient(clock, script).send(a_request(), scheduled_ns)

    return run_virtual(main())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no"), "connect_refused"),
        (ConnectionResetError(), "connection_reset"),
        (BrokenPipeError(), "connection_reset"),
        (TimeoutError(), "timeout"),
        (asyncio.IncompleteReadError(b"x", 2), "truncated"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "unreachable"),
        (OSError(errno.EMFILE, "Too many open files"), "no_socket"),
        (FileNotFoundError(errno.ENOENT, "No such file"), None),
        (EOFError(), None),
        (ValueError("a bug"), None),
    ],
)
def test_only_what_a_network_can_cause_has_a_kind(error: Exception, kind: str | None) -> None:
    """Each network failure has its own kind; a missing file or a bug has none."""
    assert network_error_kind(error) == kind


def test_a_failed_record_invents_nothing() -> None:
    """A request of which nothing was seen has no times, tokens or counts, not zeros."""
    record = failed_record(a_request(), 3, closed_ns=9, kind="timeout", text="after 1 s")

    assert (record.scheduled_ns, record.closed_ns) == (3, 9)
    assert (record.sent_ns, record.first_byte_ns, record.output_tokens) == (None, None, None)
    assert record.token_events.shape == (0, 2)
    assert (record.error_kind, record.error, record.asked_tokens) == ("timeout", "after 1 s", 5)


def test_scripted_times_count_from_the_sending() -> None:
    """The record holds the script's times after the moment of sending, to the nanosecond."""
    answer = ScriptedAnswer(
        events=((100, 1), (150, 3)),
        first_byte_after_ns=90,
        closed_after_ns=170,
        output_tokens=4,
        prompt_tokens=120,
        cached_prompt_tokens=96,
    )

    record = send_one(always(answer), at_ns=1000, scheduled_ns=700)

    assert (record.scheduled_ns, record.sent_ns) == (700, 1000)
    assert (record.first_byte_ns, record.closed_ns) == (1090, 1170)
    assert record.token_events.tolist() == [[1100, 1], [1150, 3]]
    assert (record.output_tokens, record.output_tokens_source) == (4, "usage")
    assert (record.prompt_tokens, record.cached_prompt_tokens) == (120, 96)
    assert (record.finish_reason, record.error_kind) == ("length", None)


def test_the_script_sees_the_request_and_the_time_of_sending() -> None:
    """A script can be a server with a state: it is asked at the moment of sending."""
    seen: list[tuple[str, int]] = []

    def script(request: Request, sent_ns: int) -> ScriptedAnswer:
        seen.append((request.request_id, sent_ns))
        return ScriptedAnswer()

    record = send_one(script, at_ns=42)

    assert seen == [("c00000-t00", 42)]
    assert (record.closed_ns, record.first_byte_ns, record.output_tokens) == (42, None, None)


def test_an_even_answer_puts_the_rest_into_its_last_event() -> None:
    """Five tokens, two an event: events of 2, 2 and 1, one gap apart."""
    answer = even_answer(a_request(5), ttft_ns=100, gap_ns=10, tokens_per_event=2)

    assert answer.events == ((100, 2), (110, 2), (120, 1))
    assert (answer.output_tokens, answer.prompt_tokens) == (5, 120)


def test_a_scripted_failure_keeps_the_tokens_before_it() -> None:
    """An answer that breaks off has its kind, its text and what came before; no finish reason."""
    broken = ScriptedAnswer(events=((5, 1),), error_kind="truncated", error="no [DONE]")

    record = send_one(always(broken))

    assert (record.error_kind, record.error) == ("truncated", "no [DONE]")
    assert record.finish_reason is None
    assert len(record.token_events) == 1


def test_a_scripted_exception_comes_when_the_answer_would_have_ended() -> None:
    """`raises` waits for its time."""
    script = ScriptedAnswer(closed_after_ns=7, raises=ConnectionResetError("gone"))

    async def main() -> int:
        loop = virtual_loop()
        client = ScriptedClient(VirtualClock(loop), always(script))
        with pytest.raises(ConnectionResetError, match="gone"):
            await client.send(a_request(), 0)
        return loop.now_ns

    assert run_virtual(main()) == 7


def test_on_a_real_clock_the_record_still_holds_the_scripted_times() -> None:
    """Waking late does not change the record, and the client does not return early."""

    async def main() -> tuple[RequestRecord, int]:
        clock = MonotonicClock()
        client = ScriptedClient(
            clock, lambda request, _: even_answer(request, ttft_ns=4 * MS, gap_ns=2 * MS)
        )
        record = await client.send(a_request(), 0)
        return record, clock.now_ns()

    record, returned_ns = asyncio.run(main())

    assert record.sent_ns is not None
    assert (record.token_events[:, 0] - record.sent_ns).tolist() == [
        n * MS for n in range(4, 13, 2)
    ]
    assert record.closed_ns == record.sent_ns + 12 * MS
    assert returned_ns >= record.closed_ns

"""Plays of the load generator against a server whose answers are known."""

from __future__ import annotations

import itertools

from harness.client.scripted import Script, ScriptedAnswer, ScriptedClient, always
from harness.load.loadgen import Progress, play
from harness.load.schedule import Schedule
from harness.results.store.records import RequestRecord
from harness.timing.clock import VirtualClock, run_virtual, virtual_loop
from harness.workloads.base import Conversation, Segment, Turn


def conversations(count: int, *, turns: int = 1, think_time_ns: int = 0) -> list[Conversation]:
    """Conversations of equal turns: 10 prompt tokens, 3 output tokens."""
    return [
        Conversation(
            conversation_id=f"user-{number}",
            turns=tuple(
                Turn(
                    prompt=(Segment(number, 10),),
                    output_tokens=3,
                    think_time_ns=think_time_ns if turn else 0,
                )
                for turn in range(turns)
            ),
        )
        for number in range(count)
    ]


def answers_after(service_ns: int) -> Script:
    """Answer every request `service_ns` after it was sent."""
    return always(ScriptedAnswer(events=((service_ns, 3),), output_tokens=3))


def play_virtual(
    script: Script,
    schedule: Schedule,
    asked: list[Conversation],
    progress: Progress | None = None,
) -> list[RequestRecord]:
    """Play on virtual time against a scripted server."""

    async def main() -> list[RequestRecord]:
        clock = VirtualClock(virtual_loop())
        return await play(ScriptedClient(clock, script), clock, schedule, asked, progress=progress)

    return run_virtual(main())


def sent(records: list[RequestRecord]) -> list[int]:
    """Times of sending, in ns; every request must have one."""
    times = [record.sent_ns for record in records]
    assert None not in times
    return [time_ns for time_ns in times if time_ns is not None]


def scheduled_ttft(records: list[RequestRecord]) -> list[int]:
    """First token event minus the time when the request was due, in ns."""
    return [int(record.token_events[0, 0]) - record.scheduled_ns for record in records]


def peak_alive(spans: list[tuple[int, int]]) -> int:
    """Most spans (start, end) that hold one instant; one that ends as another starts makes room."""
    steps = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    return max(itertools.accumulate(step for _, step in steps))


def requests_alive(records: list[RequestRecord]) -> int:
    """Most requests in flight at one instant."""
    return peak_alive(
        [(start, r.closed_ns) for start, r in zip(sent(records), records, strict=True)]
    )

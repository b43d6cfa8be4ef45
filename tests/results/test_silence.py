"""Stretches without a token on any stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from known_runs import known_record

from harness.results.metrics import per_request
from harness.results.silence import Silence, silences
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord


def found(records: Sequence[RequestRecord]) -> tuple[Silence, ...]:
    table = table_of(records)
    return silences(table, per_request(table, open_loop=False))


def streams(
    frozen_s: float, *, at_s: float = 1.0, count: int = 4, gap_ms: float = 20, tokens: int = 200
) -> list[RequestRecord]:
    """Return streams of `tokens` tokens, all sent at 0, that stand still at `at_s` for a while."""
    times = [50 + gap_ms * number for number in range(tokens)]
    late = [ms if ms <= at_s * 1000 else ms + frozen_s * 1000 for ms in times]
    return [known_record(index, [(ms, 1) for ms in late]) for index in range(count)]


@pytest.mark.parametrize("frozen_s", [3, 20, 61])
def test_a_frozen_engine_is_seen(frozen_s: float) -> None:
    """One stretch, with its time, its length and the requests that waited."""
    [silence] = found(streams(frozen_s))

    assert silence.start_s == pytest.approx(0.99, abs=0.03)
    assert silence.length_s == pytest.approx(frozen_s + 0.02)
    assert silence.in_flight == 4


def test_two_stalls_are_two() -> None:
    """Each with a time of its own."""
    one, other = streams(5), streams(9, at_s=2.0)
    later = [
        known_record(
            index + 10, [(ns / 1e6 + 9000, 1) for ns, _ in record.token_events], sent_ms=9000
        )
        for index, record in enumerate(other)
    ]

    first, second = found([*one, *later])

    assert (first.length_s, second.length_s) == pytest.approx((5.02, 9.02))


@pytest.mark.parametrize(
    "records",
    [
        streams(1.9),  # shorter than two seconds
        streams(3, gap_ms=200, tokens=50),  # 20 TPOTs are four seconds
        [known_record(0, [(100, 1)]), known_record(1, [(60_100, 1)], sent_ms=60_000)],  # idle
        [known_record(i, [(9000 * i + 8000, 1), (9000 * i + 8010, 1)], sent_ms=9000 * i)
         for i in range(5)],  # long prompts, one after the other
    ],
    ids=["short", "slow-server", "nothing-in-flight", "long-prompts"],
)  # fmt: skip
def test_what_is_no_stall_is_none(records: list[RequestRecord]) -> None:
    """Nothing in flight, a slow server, a long prompt: nothing stood still."""
    assert found(records) == ()


def test_an_engine_that_freezes_before_the_first_token_is_seen() -> None:
    """Prompts of 100 ms; one request waits for 20 s."""
    records = [
        known_record(i, [(200 * i + 100, 1), (200 * i + 150, 1)], sent_ms=200 * i) for i in range(9)
    ]
    frozen = known_record(9, [(22_000, 1), (22_050, 1)], sent_ms=2000)

    [silence] = found([*records, frozen])

    assert (silence.start_s, silence.length_s, silence.in_flight) == (2.0, 20.0, 1)


def test_a_server_that_never_goes_on_is_seen() -> None:
    """The last stretch has no token behind it: it ends when the requests are given up."""
    records = [
        known_record(i, [(50 + 20 * k, 1) for k in range(50)], closed_ms=31_000) for i in range(2)
    ]

    [silence] = found(records)

    assert silence.length_s == pytest.approx(31 - 1.03)


def test_a_run_without_an_answer_has_no_silence() -> None:
    """Nothing to compare with: the failures are what such a run shows."""
    assert found([known_record(0, error_kind="timeout", closed_ms=30_000)]) == ()

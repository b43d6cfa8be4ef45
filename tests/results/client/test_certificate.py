"""Tests of the client certificate: the bounds of each limit, and runs without a verdict."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from known_runs import (
    CLOSED,
    MS,
    OPEN,
    known_client,
    known_manifest,
    known_record,
    known_worker,
    late_client,
    manifest_facts,
    steady_records,
)
from repository import ROOT

from harness.results.client.certificate import certify
from harness.results.client.limits import LIMITS
from harness.results.metrics import run_metrics
from harness.results.store.manifest import manifest_of
from harness.results.store.parquet import table_of
from harness.results.store.records import RequestRecord
from harness.results.summary import document_of
from harness.results.warnings.checks import run_warnings

PAGE = ROOT / "docs" / "certificate.md"
NAMES = [limit.name for limit in LIMITS]


def of(
    records: Sequence[RequestRecord] | None = None,
    client: dict[str, Any] | None = None,
    **manifest: Any,
) -> dict[str, Any]:
    """Return the certificate of a run in real time; by default the client is TRUSTED."""
    facts = {"clock": "monotonic", "client": client or known_client(), **manifest}
    whole = known_manifest(**facts)
    metrics = run_metrics(table_of(records or steady_records(2, 301)), whole)
    return document_of(certify(metrics, whole))


def verdict(found: dict[str, Any], name: str) -> str:
    """Return the verdict of the reason for one limit, or TRUSTED without a reason."""
    verdicts = [reason["verdict"] for reason in found["reasons"] if reason["name"] == name]
    assert len(verdicts) <= 1
    return verdicts[0] if verdicts else "TRUSTED"


def open_loop(
    delays_ms: Sequence[float], every_ms: float = 10.0, ttft_ms: float = 100.0
) -> list[RequestRecord]:
    """Return requests that are due at equal intervals and are sent with these delays."""
    return [
        known_record(
            i,
            [(sent_ms + ttft_ms, 1), (sent_ms + 2 * ttft_ms, 5)],
            scheduled_ms=every_ms * i,
            sent_ms=sent_ms,
        )
        for i, delay_ms in enumerate(delays_ms)
        for sent_ms in [every_ms * i + delay_ms]
    ]


def test_a_quiet_client_is_trusted() -> None:
    """64 streams at 100 tokens/s, 0.3 ms of lag and a tenth of a core give no reason."""
    records = steady_records(64, 5, service_ms=640.0, tokens=64)

    found = of(records, load={**CLOSED, "value": 64})

    assert (found["verdict"], found["reasons"]) == ("TRUSTED", [])
    assert list(found["measured"]) == NAMES
    assert found["measured"]["loop_lag"] == {
        "value": 0.3, "unit": "ms", "degraded": 1.0, "invalid": 20.0,
    }  # fmt: skip


def test_a_small_run_can_be_trusted() -> None:
    """The unreliable P99 of eight requests does not count against the client."""
    assert of(steady_records(2, 4))["verdict"] == "TRUSTED"


def test_neither_argument_is_changed() -> None:
    """`certify` does not change its arguments."""
    manifest = known_manifest(client=known_client(), clock="monotonic")
    figures = run_metrics(table_of(steady_records(2, 9)), manifest)
    before = figures.requests.copy(), copy.deepcopy(manifest)

    certify(figures, manifest)

    assert figures.requests.equals(before[0])
    assert manifest == before[1]


@pytest.mark.parametrize(
    ("manifest", "name", "message"),
    [
        ({"client": None, "clock": "virtual"}, "virtual_time", "virtual time"),
        ({"client": None, "clock": "monotonic"}, "not_recorded", "not recorded"),
        ({"clock": "monotonic"}, "not_recorded", "not recorded"),
    ],
)
def test_without_a_client_there_is_no_verdict(
    manifest: dict[str, Any], name: str, message: str
) -> None:
    """Virtual time and older runs have no verdict, and the reason says why."""
    facts = {**manifest_facts(), **manifest}
    if "client" not in manifest:
        del facts["client"]
    whole = manifest_of(facts)

    found = certify(run_metrics(table_of(steady_records(2, 9)), whole), whole)

    assert found.verdict is None
    (reason,) = found.reasons
    assert reason.name == name
    assert reason.message.startswith(message)


def test_a_run_that_sent_nothing_has_no_certificate() -> None:
    """A run without requests has no verdict, with the reason `nothing_sent`."""
    whole = known_manifest(client=known_client(), clock="monotonic")

    found = certify(run_metrics(table_of([]), whole), whole)

    assert (found.verdict, found.reasons[0].name) == (None, "nothing_sent")


def test_without_the_lag_no_client_is_trusted() -> None:
    """If the lag is unknown, the verdict is null instead of TRUSTED; INVALID stays INVALID."""
    silent = known_client(known_worker(loop_lag_ns=None))
    busy = known_client(known_worker(loop_lag_ns=None, cpu_s=29.0))

    assert of(client=silent)["verdict"] is None
    assert of(client=silent)["reasons"][0]["name"] == "lag_unknown"
    assert of(client=busy)["verdict"] == "INVALID"
    assert [reason["name"] for reason in of(client=busy)["reasons"]] == ["cpu", "lag_unknown"]


def test_unknown_values_are_not_judged() -> None:
    """A manifest with nulls gives null values, and no reason except the unknown lag."""
    worker = dict.fromkeys(known_worker())
    client = known_client(worker, wall_clock_step_ns=None, ports=None, open_files=None)
    client |= {"ports": {"available": None, "used": 7}, "open_files": {"limit": None, "most": 1}}

    found = of(client=client)

    values = {name: figure["value"] for name, figure in found["measured"].items()}
    assert {name for name, value in values.items() if value is None} >= {
        "loop_lag", "cpu", "ports", "open_files", "read_on_the_clock", "beyond_calibration",
        "wall_clock_stepped",
    }  # fmt: skip
    assert [reason["name"] for reason in found["reasons"]] == ["lag_unknown"]


Made = Callable[[float], dict[str, Any]]


def _lag(value_ms: float) -> dict[str, Any]:
    return of(client=late_client(value_ms))


def _cpu(share: float) -> dict[str, Any]:
    return of(client=known_client(known_worker(), known_worker(cpu_s=round(30 * share, 9))))


def _open_files(share: float) -> dict[str, Any]:
    return of(client=known_client(open_files={"limit": 1000, "most": round(1000 * share)}))


def _ports(share: float) -> dict[str, Any]:
    return of(client=known_client(ports={"available": 1000, "used": round(1000 * share)}))


def _calibration(share: float) -> dict[str, Any]:
    rate = of_rate(steady_records(2, 301))
    return of(client=known_client(calibration={"highest_tokens_per_s": rate / share, "date": ""}))


def of_rate(records: Sequence[RequestRecord]) -> float:
    return run_metrics(table_of(records), known_manifest()).run.output_tokens_per_s or 0.0


def _read(share: float) -> dict[str, Any]:
    return of(
        client=known_client(known_worker(requests=1000, read_on_the_clock=round(1000 * share)))
    )


def _wall_clock(step_ms: float) -> dict[str, Any]:
    return of(client=known_client(wall_clock_step_ns=round(step_ms * MS)))


def _failed(share: float) -> dict[str, Any]:
    records = steady_records(2, 500)
    for i in range(round(1000 * share)):
        records[i] = replace(records[i], error_kind="timeout")
    return of(records, max_failed_share=0.0)


def _usage(share: float) -> dict[str, Any]:
    records = steady_records(2, 500)
    for i in range(round(1000 * share)):
        records[i] = replace(records[i], output_tokens_source="client")
    return of(records)


def _shorter(share: float) -> dict[str, Any]:
    records = steady_records(2, 500)  # 5000 tokens
    records[7] = replace(records[7], asked_tokens=5 + round(4995 * share / (1 - share)))
    return of(records)


def _send_delay(value_ms: float) -> dict[str, Any]:
    return of(open_loop([value_ms] * 400, ttft_ms=10.0), load=OPEN)


def _turn_round(value_ms: float) -> dict[str, Any]:
    """One slot with answers of 20 ms; each request is sent this long after the previous answer."""
    records = [
        known_record(
            i, [(sent + 10, 1), (sent + 20, 4)], scheduled_ms=sent - value_ms, sent_ms=sent
        )
        for i in range(140)
        for sent in [i * (20 + value_ms) + value_ms]
    ]
    return of(records, load={**CLOSED, "value": 1})


def _rate(short: float) -> dict[str, Any]:
    """The last of 101 starts is late enough to lower the rate by this share."""
    delays = [0.0] * 101
    delays[-1] = 1000 * short / (1 - short)
    return of(open_loop(delays, ttft_ms=1e5), load=OPEN)


def _in_flight(short: float) -> dict[str, Any]:
    """Two slots with requests of 100 ms; the gap between them is this share of the time."""
    gap_ms = 100 * short / (1 - short)
    cycle_ms = 100 + gap_ms
    return of(
        [
            known_record(2 * i + slot, [(begin + 50, 1), (begin + 100, 1)], sent_ms=begin)
            for i in range(400)
            for slot in range(2)
            for begin in [i * cycle_ms + slot * cycle_ms / 2]
        ]
    )


# name → how to make a value, the DEGRADED bound, the INVALID bound
EDGES: dict[str, tuple[Made, float, float | None]] = {
    "load_not_delivered": (_rate, 0.02, 0.10),
    "send_delay": (_send_delay, 1.0, 20.0),
    "turn_round": (_turn_round, 1.0, 20.0),
    "loop_lag": (_lag, 2.0, 20.0),  # TPOT p50 is 20 ms
    "cpu": (_cpu, 0.80, 0.95),
    "in_flight": (_in_flight, 0.02, 0.10),
    "open_files": (_open_files, 0.80, 0.99),
    "ports": (_ports, 0.80, 1.0),
    "failed_share": (_failed, 0.01, 0.05),
    "usage_missing": (_usage, 0.01, None),
    "shorter_than_asked": (_shorter, 0.01, None),
    "read_on_the_clock": (_read, 0.01, None),
    "beyond_calibration": (_calibration, 1.0, None),
    "wall_clock_stepped": (_wall_clock, 100.0, None),
}


def test_every_limit_has_an_edge_here() -> None:
    """Every limit has a test of its bounds."""
    assert list(EDGES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_reason_comes_above_its_bound_and_not_below(name: str) -> None:
    """A value below the first bound is TRUSTED, above it DEGRADED, above the second INVALID."""
    make, degraded, invalid = EDGES[name]

    assert verdict(make(0.9 * degraded), name) == "TRUSTED"
    above = make(1.1 * degraded)
    assert verdict(above, name) == "DEGRADED"
    assert above["measured"][name]["value"] == pytest.approx(1.1 * degraded, rel=0.02)
    far = make((1.04 if invalid else 9) * (invalid or degraded))
    assert verdict(far, name) == ("INVALID" if invalid else "DEGRADED")
    assert far["verdict"] == verdict(far, name)
    if invalid:
        assert verdict(make(0.96 * invalid), name) == "DEGRADED"


@pytest.mark.parametrize("name", ["loop_lag", "cpu", "open_files", "ports", "wall_clock_stepped"])
def test_a_value_at_its_bound_is_within_it(name: str) -> None:
    """A value equal to its bound is allowed."""
    make, degraded, _ = EDGES[name]

    assert verdict(make(degraded), name) == "TRUSTED"


@pytest.mark.parametrize("name", NAMES)
def test_each_reason_has_its_value_its_limit_and_a_remedy(name: str) -> None:
    """A reason contains the measured value, the bound that it exceeds, and a remedy."""
    make, degraded, _ = EDGES[name]
    (reason,) = [one for one in make(1.5 * degraded)["reasons"] if one["name"] == name]

    assert re.search(r"\d.*; the limit is \d", reason["message"])
    assert len(reason["remedy"]) > 20


def test_the_limit_of_the_lag_is_a_share_of_tpot() -> None:
    """With a TPOT of 200 ms the limits are 20 ms (10 %) and 100 ms (50 %)."""
    slow = steady_records(2, 301, service_ms=1000.0)

    assert verdict(of(slow, late_client(19)), "loop_lag") == "TRUSTED"
    assert verdict(of(slow, late_client(95)), "loop_lag") == "DEGRADED"
    assert verdict(of(slow, late_client(101)), "loop_lag") == "INVALID"


def test_the_limit_of_the_lag_is_a_share_of_ttft_without_tpot() -> None:
    """With answers of one token after 500 ms the limit of the lag is 50 ms."""
    prefill = steady_records(2, 301, service_ms=500.0, tokens=1)

    assert verdict(of(prefill, late_client(40)), "loop_lag") == "TRUSTED"
    assert verdict(of(prefill, late_client(60)), "loop_lag") == "DEGRADED"


def test_the_limit_of_the_send_delay_is_a_share_of_ttft() -> None:
    """40 ms are within 5 % of a TTFT of 1 s, and more than 25 % of a TTFT of 100 ms."""
    late = [40.0] * 400

    slow = of(open_loop(late, ttft_ms=1000.0), load=OPEN)
    fast = of(open_loop(late, ttft_ms=100.0), load=OPEN)

    assert verdict(slow, "send_delay") == "TRUSTED"
    assert verdict(fast, "send_delay") == "INVALID"
    assert fast["measured"]["send_delay"]["invalid"] == 25.0


def test_a_sent_burst_of_first_requests_is_not_late() -> None:
    """The first request of each slot has no due time, so its delay does not count."""
    records = [
        known_record(i, [(sent + 50, 1), (sent + 100, 4)], scheduled_ms=0.0, sent_ms=sent)
        for i in range(64)
        for sent in [0.5 * i]
    ]
    later = known_record(64, [(250, 1), (300, 4)], scheduled_ms=131.5, sent_ms=200)

    assert of(records, load={**CLOSED, "value": 64})["measured"]["turn_round"]["value"] is None
    found = of([*records, later], load={**CLOSED, "value": 64})
    assert found["measured"]["turn_round"]["value"] == pytest.approx(68.5)


def test_the_limit_of_turn_round_is_a_share_of_e2e_latency() -> None:
    """8 ms between answers of 1 s are TRUSTED; between answers of 20 ms they are DEGRADED."""
    long = [
        known_record(i, [(sent + 50, 1), (sent + 1000, 4)], scheduled_ms=sent - 8, sent_ms=sent)
        for i in range(40)
        for sent in [1008.0 * i + 8]
    ]

    assert verdict(of(long, load={**CLOSED, "value": 1}), "turn_round") == "TRUSTED"
    assert verdict(_turn_round(8.0), "turn_round") == "DEGRADED"


def test_connecting_is_not_part_of_the_send_delay() -> None:
    """A handshake of 80 ms before each send does not count against the client."""
    records = [replace(one, connect_ns=80 * MS) for one in open_loop([80.5] * 400)]

    assert of(records, load=OPEN)["measured"]["send_delay"]["value"] == pytest.approx(0.5)


def test_waiting_for_a_cap_is_not_part_of_the_send_delay() -> None:
    """Conversations that wait for the cap give the warning `cap_reached` and a TRUSTED client."""
    records = [
        known_record(i, [(sent + 100, 1), (sent + 500, 4)], scheduled_ms=100.0 * i, sent_ms=sent)
        for i in range(8)
        for sent in [500.0 * i]
    ]
    load = {**OPEN, "value": 10.0}
    manifest = known_manifest(
        load={**load, "max_concurrency": 1}, client=known_client(), clock="monotonic"
    )

    capped = certify(figures := run_metrics(table_of(records), manifest), manifest)
    blamed = of(records, load=load)

    assert capped.verdict == "TRUSTED"
    assert {"load_not_delivered", "send_delay"} <= {one["name"] for one in blamed["reasons"]}
    (named,) = [
        warning for warning in run_warnings(figures, manifest) if warning.name == "cap_reached"
    ]
    assert named.message.startswith("7 conversations waited for one of 1 places, for up to 2.80 s")


def test_a_send_delay_beyond_the_cap_is_measured() -> None:
    """A client that sends 40 ms after a slot is free has a send delay of 40 ms."""
    records = [
        known_record(i, [(sent + 100, 1), (sent + 960, 4)], scheduled_ms=float(i), sent_ms=sent)
        for i in range(40)
        for sent in [1000.0 * (i // 2) + i % 2]
    ]

    found = of(records, load={**OPEN, "value": 1000.0, "max_concurrency": 2})

    assert found["measured"]["send_delay"]["value"] == pytest.approx(40.0, abs=0.1)


def test_each_worker_has_its_own_slots_under_a_cap() -> None:
    """Two workers share a cap of two, so each conversation waits for the one slot of its worker.

    The first worker gets all long conversations, which wait although the other slot is free.
    """
    records = []
    free_ms = [0.0, 0.0]
    for i in range(20):
        due, length = 100.0 * i, (900.0, 50.0)[i % 2]
        sent = max(due, free_ms[i % 2])
        free_ms[i % 2] = sent + length
        events = [(sent + 20, 1), (sent + length, 4)]
        records.append(known_record(i, events, scheduled_ms=due, sent_ms=sent))
    load = {**OPEN, "max_concurrency": 2}

    two = of(records, known_client(known_worker(), known_worker()), load=load)
    one = of(records, load=load)

    assert two["verdict"] == "TRUSTED"
    assert verdict(one, "send_delay") == "DEGRADED"  # 20 readings are too few for INVALID


def test_a_client_stopped_95_ms_of_every_100_is_invalid() -> None:
    """A client that is stopped most of the time has a P99 lag above 90 ms at low CPU use."""
    lag = {"p50": 45 * MS, "p99": 94 * MS, "max": 95 * MS, "n": 4854}
    stopped = known_client(known_worker(cpu_s=0.4, loop_lag_ns=lag))

    found = of(client=stopped)

    assert found["verdict"] == "INVALID"
    (reason,) = found["reasons"]
    assert reason["message"] == (
        "the client's event loop woke 94 ms late (p99); the limit is 20 ms"
    )
    assert "it used 1.33 %: use a quieter machine" in reason["remedy"]


def test_the_remedy_of_a_busy_client_is_twice_the_processes() -> None:
    """With three client processes the remedy suggests six."""
    workers = [known_worker(), known_worker(), known_worker(cpu_s=29.9)]

    (reason,) = of(client=known_client(*workers))["reasons"]

    assert reason["message"].startswith("the client used 99.7 % of its CPU core")
    assert "`--workers 6` of harness load, `workers: 6` in a sweep" in reason["remedy"]
    assert "a quieter machine" in reason["remedy"]


def test_the_worst_worker_counts() -> None:
    """The lag of a run is the highest lag of its workers, not the mean."""
    late = late_client(30)["workers"][0]
    workers = [known_worker(), known_worker(), late, known_worker()]

    assert of(client=known_client(*workers))["measured"]["loop_lag"]["value"] == 30


def test_a_phase_too_short_for_cpu_is_not_judged_by_it() -> None:
    """A load phase of half a second mostly opens connections, so its CPU is not judged."""
    short = known_client(known_worker(cpu_s=0.49, wall_s=0.5))

    assert of(client=short)["measured"]["cpu"]["value"] is None


def test_ports_of_a_long_run_come_back() -> None:
    """1,000 connections over ten minutes use 100 ports at a time."""
    client = known_client(known_worker(wall_s=600.0), ports={"available": 1000, "used": 1000})

    assert of(client=client)["measured"]["ports"]["value"] == pytest.approx(0.1)


def test_a_calibration_is_of_one_process() -> None:
    """Two processes may receive twice the rate that one is calibrated for."""
    rate = of_rate(steady_records(2, 301))
    calibration = {"highest_tokens_per_s": 0.6 * rate, "date": "2026-01-05"}

    one = of(client=known_client(calibration=calibration))
    two = of(client=known_client(known_worker(), known_worker(), calibration=calibration))

    assert verdict(one, "beyond_calibration") == "DEGRADED"
    assert two["verdict"] == "TRUSTED"


def test_a_wall_clock_that_is_set_back_is_only_a_warning() -> None:
    """A jump ahead makes the run DEGRADED, because the machine may have been suspended."""
    for step_ms, expected in ((-3000, "TRUSTED"), (3000, "DEGRADED")):
        client = known_client(wall_clock_step_ns=step_ms * MS)
        manifest = known_manifest(client=client, clock="monotonic")
        figures = run_metrics(table_of(steady_records(2, 301)), manifest)

        assert certify(figures, manifest).verdict == expected
        assert [warning.name for warning in run_warnings(figures, manifest)] == [
            "wall_clock_stepped"
        ]


def test_slots_left_empty_count_over_the_steady_window_only() -> None:
    """`in_flight` is None without a steady window and in open loop."""
    assert of(steady_records(2, 3))["measured"]["in_flight"]["value"] is None
    assert of(steady_records(2, 301))["measured"]["in_flight"]["value"] == pytest.approx(0)
    assert of(open_loop([0.0] * 40), load=OPEN)["measured"]["in_flight"]["value"] is None


def test_think_time_keeps_a_slot_busy() -> None:
    """Two users who think for half of the time count as two conversations alive."""
    records = [
        known_record(
            4 * n + t, [(start + 10, 1), (start + 50, 4)], sent_ms=start, scheduled_ms=start,
            conversation=f"c{n}", turn=t, closed_ms=start + (100 if t == 3 else 50),
        )
        for n in range(20)
        for t in range(4)
        for start in [400.0 * (n // 2) + 200 * (n % 2) + 100 * t]
    ]  # fmt: skip

    assert of(records)["measured"]["in_flight"]["value"] == pytest.approx(0)


def test_failures_within_max_failed_share_make_no_run_invalid() -> None:
    """8 % of failed requests are DEGRADED if 10 % are allowed, and INVALID if 1 % is."""
    records = steady_records(2, 500)
    for i in range(80):
        records[i] = replace(records[i], error_kind="timeout")

    assert verdict(of(records, max_failed_share=0.1), "failed_share") == "DEGRADED"
    assert verdict(of(records, max_failed_share=0.01), "failed_share") == "INVALID"


def test_the_worst_reason_comes_first() -> None:
    """INVALID reasons come before DEGRADED ones, in any order of the limits."""
    client = known_client(late_client(3)["workers"][0] | {"cpu_s": 29.9})

    found = of(client=client)

    assert [(one["name"], one["verdict"]) for one in found["reasons"]] == [
        ("cpu", "INVALID"), ("loop_lag", "DEGRADED"),
    ]  # fmt: skip
    assert found["verdict"] == "INVALID"


def test_the_page_has_the_table_of_the_code() -> None:
    """The table of docs/certificate.md equals the limits, and the page explains each limit."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", page, re.MULTILINE)

    assert rows == [(limit.name, limit.measures, *limit.texts()) for limit in LIMITS]
    explained = page.partition("## What each limit means")[2]
    assert [name for name in NAMES if f"`{name}`" not in explained] == []


@pytest.mark.parametrize(("readings", "found"), [(99, "DEGRADED"), (100, "INVALID")])
def test_one_stall_of_a_short_run_does_not_make_it_invalid(readings: int, found: str) -> None:
    """A P99 of fewer than 100 readings makes a run DEGRADED at most."""
    lag = {"p50": MS // 10, "p99": 60 * MS, "max": 60 * MS, "n": readings}

    assert verdict(of(client=known_client(known_worker(loop_lag_ns=lag))), "loop_lag") == found

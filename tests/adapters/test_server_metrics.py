"""A scrape becomes numbers; what is not there is None, and engines of one server are summed."""

from __future__ import annotations

import pytest

from harness.adapters.server_metrics import ServerMetrics

TEXT = """
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 2443.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 57.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:by_source_total{engine="0",source="local_compute"} 907.0
vllm:by_source_total{engine="1",source="local_compute"} 93.0
vllm:by_source_total{engine="0",source="cache"} 1536.0
vllm:steps_bucket{engine="0",le="1.0"} 207.0
vllm:steps_bucket{engine="0",le="512.0"} 219.0
vllm:steps_bucket{engine="0",le="1024.0"} 220.0
vllm:steps_bucket{engine="0",le="+Inf"} 221.0
vllm:steps_bucket{engine="1",le="1.0"} 0.0
vllm:steps_bucket{engine="1",le="512.0"} 1.0
vllm:steps_bucket{engine="1",le="1024.0"} 2.0
vllm:steps_bucket{engine="1",le="+Inf"} 2.0
vllm:config_info{block_size="128",note="a \\"quoted\\", odd} \\\\ label",on="True"} 1.0
plain_gauge 4 1700000000000
broken{x="1" 5
not a sample at all
vllm:usage NaN
"""
METRICS = ServerMetrics(TEXT)


def test_engines_of_one_server_are_summed() -> None:
    """Two engines behind one port count together."""
    assert METRICS.count("vllm:prompt_tokens") == 2500


def test_labels_choose_a_part() -> None:
    """A series that is split by a label can be asked for one part of it."""
    assert METRICS.total("vllm:by_source", source="local_compute") == 1000.0
    assert METRICS.total("vllm:by_source", source="elsewhere") is None


def test_the_first_name_that_is_there_counts() -> None:
    """An older name is a fallback, and never added to the newer one."""
    assert METRICS.count("vllm:not_there", "plain_gauge", "vllm:prompt_tokens") == 4
    assert METRICS.count("vllm:not_there") is None


def test_a_number_that_is_none_is_no_count() -> None:
    """NaN, and a line that cannot be read, count nothing."""
    assert METRICS.count("vllm:usage") is None
    assert METRICS.count("broken") is None


@pytest.mark.parametrize(
    ("limit", "sure"), [(512, 3), (511, 3), (513, 1), (1024, 1), (1025, 0), (0, 16)]
)
def test_a_histogram_gives_a_lower_bound(limit: int, sure: int) -> None:
    """Only what lies in buckets wholly above a limit is surely above it."""
    assert METRICS.above("vllm:steps", limit) == sure


def test_no_histogram_is_not_an_empty_one() -> None:
    """Absent is None, never 0."""
    assert METRICS.above("vllm:other", 1) is None


def test_labels_may_hold_anything() -> None:
    """Quotes, brackets and backslashes inside a label do not end it."""
    labels = METRICS.labels("vllm:config_info")

    assert labels == {"block_size": "128", "note": 'a "quoted", odd} \\ label', "on": "True"}
    assert METRICS.labels("vllm:other_info") is None


def test_whether_a_family_is_there_is_known() -> None:
    """A family without any series was never switched on."""
    assert METRICS.has("vllm:steps")
    assert not METRICS.has("vllm:spec_decode")
    assert not ServerMetrics("").has("vllm:")

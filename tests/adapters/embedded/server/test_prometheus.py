"""The counters of the served embedded engine, under vLLM's names."""

from __future__ import annotations

import asyncio
import re

import pytest
from served import CERTAIN, MODEL, Served, served_settings, with_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USAGE = {"include_usage": True, "continuous_usage_stats": True}
HELLO = [{"role": "user", "content": "hello there"}]


def test_speculation_sends_several_tokens_per_event() -> None:
    """Drafts that are always accepted give four tokens per step, and fewer at the end."""

    async def main(served: Served) -> None:
        *tokens, _, _ = await served.stream(
            COMPLETIONS, prompt=[5] * 20, max_tokens=10, stream_options=USAGE
        )

        counts = [event["usage"]["completion_tokens"] for event in tokens]
        assert counts == [1, 5, 9, 10]
        assert [len(event["choices"][0]["text"].split()) for event in tokens] == [1, 4, 4, 1]
        page = await served.metrics()
        spec = {key: value for key, value in page.items() if "spec_decode" in key}
        labels = f'engine="0",model_name="{MODEL}"'
        assert spec == {
            f"vllm:spec_decode_num_drafts_total{{{labels}}}": 3,
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}}": 9,
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}}": 6,
            **{
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{at}"}}': 2
                for at in range(3)
            },
        }

    with_server(main, served_settings(speculative=CERTAIN))


def test_counters_increase_with_the_requests() -> None:
    """Prompt, output and cached tokens, steps and latencies have vLLM's names."""

    async def main(served: Served) -> None:
        for _ in range(2):
            await served.post(COMPLETIONS, prompt=list(range(100)), max_tokens=4)

        page = {
            key.replace(f'engine="0",model_name="{MODEL}"', "").replace("{}", ""): value
            for key, value in (await served.metrics()).items()
        }
        assert page["vllm:prompt_tokens_total"] == 200
        assert page["vllm:generation_tokens_total"] == 8
        assert page["vllm:prefix_cache_queries_total"] == 200
        assert page["vllm:prefix_cache_hits_total"] == 96
        assert page["vllm:prompt_tokens_cached_total"] == 96
        assert page['vllm:prompt_tokens_by_source_total{,source="local_compute"}'] == 104
        assert page["vllm:num_preemptions_total"] == 0
        assert page["vllm:num_requests_running"] == page["vllm:num_requests_waiting"] == 0
        assert page["vllm:iteration_tokens_total_count"] == 8
        assert page["vllm:iteration_tokens_total_sum"] == 104 + 8
        assert page["vllm:time_to_first_token_seconds_count"] == 2
        assert page["vllm:e2e_request_latency_seconds_count"] == 2
        assert not [key for key in page if "spec_decode" in key]

    with_server(main)


def test_the_metrics_page_can_be_read_by_prometheus() -> None:
    """Each family occurs once, with help and type first, and cumulative buckets."""

    async def main(served: Served) -> None:
        await served.post(COMPLETIONS, prompt=[1, 2], max_tokens=3)
        _, text = await served.get("/metrics")

        families = re.findall(r"# TYPE (\S+) (\w+)\n", text)
        assert len(families) == len(dict(families)) > 10
        family = ""
        for line in text.splitlines()[1:]:
            if line.startswith("# TYPE"):
                family = line.split()[2]
            elif not line.startswith("# HELP"):
                assert re.fullmatch(r'[a-z_:0-9]+\{(\w+="[^"]*",?)+\} [-+.e0-9]+', line), line
                assert line.startswith(family)
        for name in ("vllm:iteration_tokens_total", "vllm:time_to_first_token_seconds"):
            buckets = re.findall(rf'{name}_bucket{{.*le="(.*?)".*}} (.*)', text)
            bounds, counts = zip(*buckets, strict=True)
            assert [float(bound) for bound in bounds] == sorted(float(bound) for bound in bounds)
            assert [float(count) for count in counts] == sorted(float(count) for count in counts)
            assert bounds[-1] == "+Inf"
        count = re.search(r"iteration_tokens_total_count{.*} (.*)", text)
        assert count is not None
        assert float(count[1]) == 3

    with_server(main)


@pytest.mark.parametrize(("toggle", "label"), [("on", "True"), ("off", "False")])
def test_cache_config_info_reports_prefix_caching(toggle: str, label: str) -> None:
    """`cache_config_info` has the state of the cache; a cache that is off has no lookups."""

    async def main(served: Served) -> None:
        for _ in range(2):
            await served.post(COMPLETIONS, prompt=list(range(100)), max_tokens=1)

        _, text = await served.get("/metrics")
        line = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info"))
        info = dict(re.findall(r'(\w+)="([^"]*)"', line))
        blocks = served.server.engine.core.config.num_blocks
        assert info == {
            "block_size": "32",
            "cache_dtype": "fp8",
            "enable_prefix_caching": label,
            "engine": "0",
            "gpu_memory_utilization": "0.9",
            "kv_cache_size_tokens": str(32 * blocks),
            "num_gpu_blocks": str(blocks),
        }
        queried = await served.metric("vllm:prefix_cache_queries_total")
        hits = await served.metric("vllm:prefix_cache_hits_total")
        assert (queried, hits) == ((200, 96) if toggle == "on" else (0, 0))

    with_server(main, served_settings(prefix_caching=toggle, block_size="32", kv_cache_dtype="fp8"))


def test_the_cache_can_be_reset_between_requests() -> None:
    """After a reset the same prompt has no hits; a reset during a request fails."""

    async def main(served: Served) -> None:
        async def cached() -> int:
            _, answer = await served.post(COMPLETIONS, prompt=list(range(100)), max_tokens=2)
            return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [await cached(), await cached()] == [0, 96]
        assert await served.post("/reset_prefix_cache") == (200, {"success": True})
        assert await cached() == 0

        running = asyncio.create_task(served.post(COMPLETIONS, prompt=[1], max_tokens=20))
        await served.until(lambda: served.server.engine.busy)
        assert await served.post("/reset_prefix_cache") == (200, {"success": False})
        await running
        assert await cached() == 96

    with_server(main)

"""The Prometheus metrics page: the engine's counters under vLLM's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.adapters.base import ServerCounters
from harness.adapters.embedded.engine import EngineConfig
from harness.adapters.embedded.server.real_time import RealTimeEngine
from harness.adapters.embedded.server.server_stats import Histogram, ServerStats

_Samples = Iterable[tuple[Mapping[str, str], float]]  # (labels, value)
_NOTE = "# simulated: the embedded engine computes the time of each step and uses no GPU\n"


class MetricsPage:
    """The page of one engine; `cache_info` is the labels of `vllm:cache_config_info`."""

    def __init__(self, engine: RealTimeEngine, model: str, cache_info: Mapping[str, str]) -> None:
        self._engine = engine
        self._labels = {"engine": "0", "model_name": model}
        self._cache_info = cache_info

    def text(self) -> str:
        """Return the page with the values at the end of the last step."""
        counters, config = self._engine.counters(), self._engine.core.config
        parts = [
            _NOTE,
            *self._gauges(),
            *self._requests(counters, caching=self._engine.core.scheduler.cache is not None),
            *(self._speculation(counters) if config.speculation else ()),
            *self._histograms(self._engine.stats),
        ]
        return "".join(parts)

    def _gauges(self) -> Iterator[str]:
        engine = self._engine
        kv = engine.core.scheduler.kv
        used = 1 - kv.available / kv.num_blocks
        info = [({**self._cache_info, "engine": "0"}, 1.0)]
        yield _family("vllm:cache_config_info", "gauge", "Configuration of the KV cache.", info)
        yield self._one("vllm:num_requests_running", "gauge", "Running sequences.", engine.running)
        yield self._one("vllm:num_requests_waiting", "gauge", "Waiting requests.", engine.waiting)
        yield self._one("vllm:kv_cache_usage_perc", "gauge", "KV blocks in use, 0 to 1.", used)

    def _requests(self, counters: ServerCounters, *, caching: bool) -> Iterator[str]:
        """Yield the request counters. Prompt tokens count once, at the first admission."""
        prompt, cached = counters.prompt_tokens or 0, counters.cached_prompt_tokens or 0
        queried = prompt if caching else 0
        yield self._total("prompt_tokens", "Prompt tokens, cached or computed.", prompt)
        sources = {"local_compute": prompt - cached, "local_cache_hit": cached}
        yield self._totals("prompt_tokens_by_source", "Prompt tokens.", "source", sources)
        yield self._total("prompt_tokens_cached", "Prompt tokens found in the cache.", cached)
        yield self._total("prefix_cache_queries", "Prefix cache lookups in tokens.", queried)
        yield self._total("prefix_cache_hits", "Prefix cache hits in tokens.", cached)
        output = counters.output_tokens or 0
        yield self._total("generation_tokens", "Output tokens.", output)
        preemptions = counters.preemptions or 0
        yield self._total("num_preemptions", "Preempted sequences.", preemptions)
        stats = self._engine.stats
        ends = {"length": stats.finished, "abort": stats.aborted, "stop": 0, "error": 0}
        yield self._totals("request_success", "Finished requests.", "finished_reason", ends)

    def _speculation(self, counters: ServerCounters) -> Iterator[str]:
        drafts, drafted = counters.verify_steps or 0, counters.drafted_tokens or 0
        accepted = counters.accepted_tokens or 0
        yield self._total("spec_decode_num_drafts", "Drafts verified.", drafts)
        yield self._total("spec_decode_num_draft_tokens", "Tokens drafted.", drafted)
        yield self._total("spec_decode_num_accepted_tokens", "Tokens accepted.", accepted)
        at = {str(place): n for place, n in sorted(self._engine.stats.accepted_at.items())}
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._totals(name, "Accepted tokens by draft position.", "position", at)

    def _histograms(self, stats: ServerStats) -> Iterator[str]:
        kinds = {
            "vllm:iteration_tokens_total": ("Prompt and output tokens by step.", stats.step_tokens),
            "vllm:time_to_first_token_seconds": (
                "From arrival to the end of the step with the first token.",
                stats.first_token_s,
            ),
            "vllm:e2e_request_latency_seconds": (
                "From arrival to the end of the last step.",
                stats.answer_s,
            ),
            "vllm:request_queue_time_seconds": (
                "From arrival to the first step.",
                stats.queued_s,
            ),
            "embedded:step_lateness_seconds": (
                "From a step's end until all of its tokens were sent.",
                stats.late_s,
            ),
        }
        for name, (text, histogram) in kinds.items():
            yield self._histogram(name, text, histogram)

    def _total(self, name: str, text: str, value: float) -> str:
        return self._one(f"vllm:{name}_total", "counter", text, value)

    def _totals(self, name: str, text: str, label: str, values: Mapping[str, int]) -> str:
        samples = [({**self._labels, label: key}, value) for key, value in values.items()]
        return _family(f"vllm:{name}_total", "counter", text, samples)

    def _one(self, name: str, kind: str, text: str, value: float) -> str:
        return _family(name, kind, text, [(self._labels, value)])

    def _histogram(self, name: str, text: str, histogram: Histogram) -> str:
        bounds = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
        lines = [
            _sample(f"{name}_bucket", {**self._labels, "le": bound}, count)
            for bound, count in zip(bounds, histogram.cumulative(), strict=True)
        ]
        lines.append(_sample(f"{name}_count", self._labels, histogram.count))
        lines.append(_sample(f"{name}_sum", self._labels, histogram.total))
        return _head(name, "histogram", text) + "".join(lines)


def cache_info(
    config: EngineConfig, *, kv_cache_dtype: str, memory_utilization: float, prefix_caching: bool
) -> dict[str, str]:
    """Return the configuration of the KV cache under vLLM's names."""
    return {
        "block_size": str(config.block_size),
        "cache_dtype": kv_cache_dtype,
        "enable_prefix_caching": str(prefix_caching),
        "gpu_memory_utilization": str(memory_utilization),
        "kv_cache_size_tokens": str(config.num_blocks * config.block_size),
        "num_gpu_blocks": str(config.num_blocks),
    }


def _family(name: str, kind: str, text: str, samples: _Samples) -> str:
    lines = [_sample(name, labels, value) for labels, value in samples]
    return _head(name, kind, text) + "".join(lines)


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}} {float(value)!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

"""The adapter of the embedded engine. It starts a simulated engine core on virtual time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from harness.adapters.base import (
    BASELINE,
    EngineError,
    EngineSettings,
    ServerCounters,
    ToggleValue,
    UnsupportedToggleError,
)
from harness.adapters.embedded.engine import (
    EngineConfig,
    EngineCore,
    SpeculativeConfig,
    StepTimer,
)
from harness.adapters.embedded.in_process import InProcessEngine
from harness.adapters.embedded.step_time import (
    ASSUMPTIONS,
    Deployment,
    FittedStepTime,
    MemoryLimits,
    StepProfile,
    StepTime,
    accuracy_of,
    check_context,
    find_gpu,
    find_model,
    kv_capacity,
    profile_from,
)

_DEFAULT_BLOCK_TOKENS = 16
_NOT_MODELLED = ("pipeline_parallel", "data_parallel", "expert_parallel")
VERSION = "embedded-3"  # increase it when the same settings give different times


class EmbeddedEndpoint:
    """A running embedded engine: its core and its settings."""

    engine_version = VERSION
    engine_kind = "simulated"
    notes: tuple[str, ...] = ()

    def __init__(self, settings: EngineSettings, core: EngineCore | None = None) -> None:
        """Use `core`, or create the core for `settings`."""
        self.core = core or EngineCore(engine_config(settings), step_time(settings))
        profile = step_profile(settings)
        # The roofline model has no time for HTTP and tokenization of a request.
        request_ns = round(profile.costs.request_s * 1e9) if profile else 0
        self.transport = InProcessEngine(core=self.core, request_ns=request_ns)
        self._settings = settings

    def effective(self) -> Mapping[str, str]:
        """Return the reported configuration, read from the core."""
        # Base settings are those that it was made from: the core changes none.
        return {**_effective(self.core.config, self._settings), **self._settings.base()}

    def counters(self) -> ServerCounters:
        """Return the core's running totals."""
        return self.core.counters()

    def reset(self) -> None:
        """Clear the prefix cache. Raises `EngineError` while requests are in flight."""
        self.core.reset()

    def facts(self) -> Mapping[str, Any]:
        """Return sizes and assumptions for the report."""
        config = self.core.config
        return {
            "kv_blocks": config.num_blocks,
            "kv_tokens": config.num_blocks * config.block_size,
            "block_size": config.block_size,
            "running_limit": config.running_limit,
            "max_model_len": config.max_model_len,
            "assumptions": list(_assumptions(config, self._settings)),
            "accuracy": list(_accuracy(self._settings)),
        }


class EmbeddedAdapter:
    """The adapter that starts the embedded engine."""

    name = "embedded"
    engine_kind = "simulated"

    def check(self, settings: EngineSettings) -> None:
        """Raise `EngineError` if the model does not fit; its subclass for an unsupported toggle."""
        engine_config(settings)

    def version_of(self, settings: EngineSettings) -> str | None:  # noqa: ARG002  the same for all settings
        """Return the version of the embedded engine."""
        return VERSION

    def implied(self, settings: EngineSettings) -> Mapping[str, ToggleValue]:
        """Return the toggle values that `settings` imply."""
        return {toggle: ToggleValue("off") for toggle in self.reasons(settings)}

    def reasons(self, settings: EngineSettings) -> Mapping[str, str]:
        """Return the reason for each toggle that `settings` turn off."""
        if settings.toggles["paged_kv"].kind == "off":
            return {"prefix_caching": "prefix caching needs paged KV blocks"}
        return {}

    def launch_line(self, settings: EngineSettings) -> list[str]:
        """Return the settings as a command line for the report. No process is started."""
        toggles = [f"{name}={value.label}" for name, value in sorted(settings.toggles.items())]
        return [
            "embedded",
            settings.model,
            f"{settings.gpu}x{gpus(settings)}",
            f"dtype={settings.dtype}",
            f"max_model_len={settings.max_model_len}",
            f"max_num_seqs={settings.max_num_seqs}",
            f"max_batched_tokens={settings.max_batched_tokens}",
            f"memory_utilization={settings.memory_utilization}",
            *toggles,
        ]

    def start(self, settings: EngineSettings) -> AbstractContextManager[EmbeddedEndpoint]:
        """Create a core in this process. Raises `EngineError`."""
        return _started(settings)

    def predict(self, settings: EngineSettings) -> tuple[float, float]:
        """Return (seconds per prompt token, seconds per output token) of a single request."""
        timer, config = step_time(settings), engine_config(settings)
        chunk = config.max_batched_tokens
        fixed_s, slope_s = timer.decode_line(1, config.queries)
        per_step = config.speculation.mean_tokens_per_step if config.speculation else 1.0
        prefill_s = timer.step_s(0, config.queries, 0, [(chunk, 0)], 1) / chunk
        return prefill_s, (fixed_s + slope_s * 1000) / per_step  # at a context of 1,000 tokens


@contextmanager
def _started(settings: EngineSettings) -> Iterator[EmbeddedEndpoint]:
    yield EmbeddedEndpoint(settings)


def gpus(settings: EngineSettings) -> int:
    """Return the number of GPUs of the engine, which equals `tensor_parallel`."""
    return _number(settings, "tensor_parallel")


def deployment(settings: EngineSettings) -> Deployment:
    """Return the deployment that determines the step times. Raises `EngineError`."""
    if settings.dtype not in ("bfloat16", "float16", "auto"):
        error = EngineError(f"the embedded engine does not support dtype {settings.dtype}")
        error.add_note("set dtype to bfloat16 or float16; for 8- or 4-bit weights set quantization")
        raise error
    if settings.toggles["attention_backend"].kind != "auto":
        raise UnsupportedToggleError(
            "attention_backend is not offered: the step times model one attention kernel only"
        )
    speculative = settings.toggles["speculative"]
    draft = dict(speculative.options).get("draft")
    speculation = _speculation(speculative)
    return Deployment(
        model=find_model(settings.model),
        gpu=find_gpu(settings.gpu),
        tensor_parallel=gpus(settings),
        quantization=settings.toggles["quantization"].kind,
        kv_cache_dtype=settings.toggles["kv_cache_dtype"].kind,
        cuda_graphs=_on(settings, "cuda_graphs"),
        overlap=_on(settings, "overlap_scheduling"),
        speculative=speculative.kind,
        draft=None
        if draft is None or speculative.kind != "draft"
        else find_model(str(draft), about="speculative"),
        draft_branches=speculation.branches if speculation else 1,
        draft_depth=speculation.depth if speculation else None,
    )


def step_time(settings: EngineSettings) -> StepTimer:
    """Return the step times of `settings`. Raises `EngineError`."""
    profile = step_profile(settings)
    return StepTime(deployment(settings)) if profile is None else FittedStepTime(profile.costs)


def step_profile(settings: EngineSettings) -> StepProfile | None:
    """Return the fitted step times of `settings`; None without a profile.

    Raises `EngineError` when the profile is for another model or other hardware, and
    `UnsupportedToggleError` when a toggle differs from the value in the profile.
    """
    if settings.step_profile is None:
        return None
    profile = profile_from(settings.step_profile)
    wanted = (settings.model, settings.gpu, settings.gpu_count)
    if wanted != (profile.model, profile.gpu, profile.gpu_count):
        error = EngineError(
            f"the step profile is for {profile.model} on {profile.gpu_count} × {profile.gpu}, not "
            f"for {settings.model} on {settings.gpu_count} × {settings.gpu}"
        )
        error.add_note("run that model on that hardware, then make a profile with `harness fit`")
        raise error
    for name in profile.differing({name: value.label for name, value in settings.toggles.items()}):
        raise UnsupportedToggleError(
            f"{name}: {settings.toggles[name].label} is not in the step profile, which was fitted "
            f"to runs with {profile.fixed[name]}"
        )
    return profile


def memory_limits(settings: EngineSettings) -> MemoryLimits:
    """Return the memory limits of `settings`."""
    return MemoryLimits(
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        memory_utilization=settings.memory_utilization,
        block_size=_block_size(settings),
    )


def engine_config(settings: EngineSettings) -> EngineConfig:
    """Return the scheduler's configuration. Raises `EngineError`."""
    _check_parallelism(settings)
    if profile := step_profile(settings):
        return scheduler_config(
            settings, profile.kv_tokens // profile.block_tokens, profile.block_tokens
        )
    check_context(find_model(settings.model), settings.max_model_len)
    blocks = kv_capacity(deployment(settings), memory_limits(settings)).blocks
    return scheduler_config(settings, blocks, _block_size(settings))


def _check_parallelism(settings: EngineSettings) -> None:
    """Raise `UnsupportedToggleError` for any parallelism except tensor parallelism."""
    for toggle in _NOT_MODELLED:
        if settings.toggles[toggle] != BASELINE[toggle]:
            raise UnsupportedToggleError(
                f"{toggle}: {settings.toggles[toggle].label} is not offered: the step times model "
                "tensor parallelism only"
            )


def scheduler_config(settings: EngineSettings, blocks: int, block_tokens: int) -> EngineConfig:
    """Return the scheduler's configuration with a cache of `blocks` KV blocks."""
    return EngineConfig(
        num_blocks=blocks,
        block_size=block_tokens,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_batched_tokens=settings.max_batched_tokens,
        prefix_caching=_on(settings, "prefix_caching"),
        chunked_prefill=_on(settings, "chunked_prefill"),
        batching=settings.toggles["batching"].kind,
        paged_kv=_on(settings, "paged_kv"),
        cuda_graphs=_on(settings, "cuda_graphs"),
        preemption=settings.toggles["preemption"].kind,
        speculation=_speculation(settings.toggles["speculative"]),
    )


def _speculation(value: ToggleValue) -> SpeculativeConfig | None:
    if value.kind == "off":
        return None
    options = dict(value.options)
    tokens, acceptance = options.get("tokens"), options.get("acceptance")
    return SpeculativeConfig.of(
        value.kind,
        tokens=None if tokens is None else int(tokens),
        tree=value.tree,
        acceptance=None if acceptance is None else float(acceptance),
    )


def _effective(config: EngineConfig, settings: EngineSettings) -> dict[str, str]:
    """Return the value of each toggle, from the core or from the deployment of the step times."""
    if settings.step_profile is not None:
        labels = {name: value.label for name, value in settings.toggles.items()}
        return {**labels, "block_size": str(config.block_size)}
    built = deployment(settings)
    switches = {
        "prefix_caching": config.prefix_caching and config.paged_kv,
        "chunked_prefill": config.chunked_prefill,
        "paged_kv": config.paged_kv,
        "cuda_graphs": config.cuda_graphs and built.cuda_graphs,
        "overlap_scheduling": built.overlap,
    }
    speculates = config.speculation is not None
    return {
        **{name: "on" if value else "off" for name, value in switches.items()},
        "batching": config.batching,
        "kv_cache_dtype": built.kv_cache_dtype,
        "quantization": built.quantization,
        "speculative": settings.toggles["speculative"].label if speculates else "off",
        "preemption": config.preemption,
        "tensor_parallel": str(built.tensor_parallel),
        **{name: BASELINE[name].label for name in _NOT_MODELLED},
        "block_size": str(config.block_size),
        "attention_backend": "auto",
    }


def _assumptions(config: EngineConfig, settings: EngineSettings) -> Iterator[str]:
    if profile := step_profile(settings):
        yield profile.sentence
    else:
        yield from StepTime(deployment(settings)).assumptions()
    if config.preemption == "swap":
        yield ASSUMPTIONS["swap"]
    if config.speculation is not None:
        speculation = config.speculation
        given = "acceptance" in dict(settings.toggles["speculative"].options)
        tree = f" of {speculation.branches} branches and depth {speculation.depth}"
        yield (
            f"{speculation.method}: each of {speculation.draft_tokens} draft tokens"
            f"{tree if speculation.depth else ''} is accepted "
            f"with probability {speculation.acceptance:g} "
            f"({'set in the sweep file' if given else 'assumed, not measured'})"
        )


def _accuracy(settings: EngineSettings) -> Iterator[str]:
    """Yield the known errors of the step times."""
    if profile := step_profile(settings):
        yield from profile.error_sentences
    else:
        yield from accuracy_of(find_gpu(settings.gpu))


def _on(settings: EngineSettings, toggle: str) -> bool:
    return settings.toggles[toggle].kind == "on"


def _block_size(settings: EngineSettings) -> int:
    auto = settings.toggles["block_size"].kind == "auto"
    return _DEFAULT_BLOCK_TOKENS if auto else _number(settings, "block_size")


def _number(settings: EngineSettings, toggle: str) -> int:
    text = settings.toggles[toggle].kind
    if not text.isdigit() or int(text) < 1:
        raise EngineError(f"{toggle} must be a whole number of at least 1, got {text!r}")
    return int(text)

"""The embedded engine in the place of a real one: as it is scheduled, at predicted step times.

The door of predictions: by the roofline where model and GPU are known, by fitted costs elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from harness.adapters.base import AS_IT_IS, BASELINE, EngineError, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import (
    EmbeddedEndpoint,
    deployment,
    engine_config,
    scheduler_config,
    step_profile,
    step_time,
)
from harness.adapters.embedded.engine import EngineConfig, EngineCore
from harness.adapters.embedded.step_time import StepTime, known_step_errors

_HALVINGS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a real engine told that its prediction takes as given; None: it did not."""

    kv_tokens: int | None = None
    block_tokens: int | None = None
    tokens_per_step: float | None = None  # that a verify step brought, the target's own included


def as_scheduled(settings: EngineSettings) -> EngineSettings:
    """Return the settings of a real engine as the embedded one can follow them.

    Which kernel computes attention is nothing that it tells apart. A server that somebody else
    started is taken to have the baseline's switches.
    """
    usual = {name: BASELINE.get(name, value) for name, value in settings.toggles.items()}
    toggles = {
        name: usual[name] if value == AS_IT_IS else value
        for name, value in settings.toggles.items()
    }
    toggles["attention_backend"] = ToggleValue("auto")
    dtype = settings.dtype if settings.dtype in ("bfloat16", "float16") else "auto"
    return replace(settings, toggles=toggles, dtype=dtype)


def predicted_endpoint(settings: EngineSettings, told: Told) -> EmbeddedEndpoint:
    """Return the engine at the step times of `settings`. Raises `EngineError`: not known, no fit.

    The room for KV is what the real engine told of it, where it did.
    """
    config = engine_config(settings)
    if told.kv_tokens and told.block_tokens:
        config = _config(settings, told.kv_tokens, told.block_tokens)
    config = _accepting(config, told.tokens_per_step)
    return EmbeddedEndpoint(settings, EngineCore(config, step_time(settings)))


def prediction_basis(settings: EngineSettings) -> dict[str, Any]:
    """Return what a prediction rests on, and how far off it is known to be: a share, or None."""
    if profile := step_profile(settings):
        return {
            "basis": profile.sentence,
            "errors": profile.error_sentences,
            "error_share": profile.error_share,
        }
    gpu = deployment(settings).gpu
    known = known_step_errors(gpu)
    return {
        "basis": f"step times of {gpu.name}: {gpu.basis}",
        "errors": [one.sentence for one in known],
        "error_share": max((one.worst_percent / 100 for one in known), default=None),
    }


def roof_sides_s(
    settings: EngineSettings, sequences: float, context_tokens: float, prompt: tuple[int, int]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the roof of a decode step and of a prompt: seconds of (bytes, arithmetic) of each.

    A step of so many sequences that read `context_tokens` between them; a prompt of (new, cached)
    tokens. Raises `EngineError` where model or GPU is not known.
    """
    timer, queries = StepTime(deployment(settings)), engine_config(settings).queries
    rows = max(1, round(sequences))
    decode = timer.roof_sides_s(rows, queries, round(context_tokens), [])
    return decode, timer.roof_sides_s(0, 1, 0, [prompt])


def _config(settings: EngineSettings, kv_tokens: int, block_tokens: int) -> EngineConfig:
    if kv_tokens < settings.max_model_len:
        raise EngineError(
            f"a cache of {kv_tokens:,} tokens holds no sequence of max_model_len "
            f"{settings.max_model_len:,}"
        )
    return scheduler_config(settings, kv_tokens // block_tokens, block_tokens)


def _accepting(config: EngineConfig, tokens_per_step: float | None) -> EngineConfig:
    """Return `config` with the acceptance that gives so many tokens a verify step."""
    speculation = config.speculation
    if speculation is None or tokens_per_step is None:
        return config
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):  # the mean rises with the acceptance
        middle = (low + high) / 2
        mean = replace(speculation, acceptance=middle).mean_tokens_per_step
        low, high = (middle, high) if mean < tokens_per_step else (low, middle)
    return replace(config, speculation=replace(speculation, acceptance=(low + high) / 2))

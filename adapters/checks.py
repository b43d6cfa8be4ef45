"""Checks that all started engines share: they find in an instant what a start finds in minutes."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from harness.adapters.base import (
    GPU_TOGGLES,
    EngineError,
    EngineSettings,
    ToggleValue,
    UnsupportedToggleError,
)
from harness.adapters.model_folder import context_tokens, model_folder

Build = TypeVar("Build")  # what a check must know of the installed engine beside the settings
# Returns why the engine cannot follow a toggle's value, as the end of a sentence; None: it can.
Check = Callable[[EngineSettings, Build], str | None]


def check_toggles(
    settings: EngineSettings, checks: Mapping[str, Check[Build]], build: Build
) -> None:
    """Raise `UnsupportedToggleError`, with the reason, for the first value that is refused."""
    for toggle, check in checks.items():
        if reason := check(settings, build):
            raise UnsupportedToggleError(f"{toggle}: {settings.toggles[toggle].label} {reason}")


def check_sizes(settings: EngineSettings) -> None:
    """Raise `EngineError` for sizes that contradict each other or the machine."""
    if settings.kind("batching") != "none" and settings.max_num_seqs == 1:
        raise EngineError("max_num_seqs 1 is no batching at all: set the toggle batching to none")
    _check_gpus(settings)


def _check_gpus(settings: EngineSettings) -> None:
    if settings.gpus <= settings.gpu_count:
        return
    above_one = [name for name in GPU_TOGGLES if settings.kind(name) != "1"] or [*GPU_TOGGLES[:1]]
    product = " × ".join(f"{name} {settings.kind(name)}" for name in above_one)
    error = EngineError(
        f"{product} needs {settings.gpus} GPUs, but hardware.count is {settings.gpu_count}"
    )
    error.about = above_one[-1]
    error.add_note(f"lower {' or '.join(above_one)}, or raise hardware.count")
    raise error


def check_context(settings: EngineSettings, *, unless: str) -> None:
    """Raise `EngineError` for a context that the engine would refuse minutes later.

    `unless` is the variable by which an author insists on it.
    """
    folder = model_folder(settings.model, settings.env)
    longest = None if folder is None else context_tokens(folder)
    if longest is not None and settings.max_model_len > longest and unless not in settings.env:
        error = EngineError(
            f"max_model_len {settings.max_model_len} is more than the {longest} tokens that "
            f"{settings.model} knows (max_position_embeddings)"
        )
        error.add_note("lower base.max_model_len")
        raise error


def check_step_tokens(settings: EngineSettings) -> None:
    """Raise `EngineError` where more sequences may run than a step has tokens."""
    if settings.running_limit > settings.step_tokens:
        raise EngineError(
            f"max_num_seqs {settings.max_num_seqs} must be at most max_batched_tokens "
            f"{settings.step_tokens}: each running sequence takes a token of a step"
        )


def check_model(settings: EngineSettings) -> None:
    """Raise `EngineError` where the model is named as a folder, and is not one."""
    if re.match(r"[~./]", settings.model) and model_folder(settings.model, {}) is None:
        raise EngineError(f"there is no model folder {settings.model} with a config.json")


def not_offered(toggle: str, kind: str, why: str) -> Check[object]:
    """Return the check that refuses one kind of a toggle."""
    return lambda settings, _: f"is not offered: {why}" if settings.kind(toggle) == kind else None


def takes_kv_dtypes(kinds: Collection[str]) -> Check[object]:
    """Return the check of `kv_cache_dtype` for an engine that stores KV as one of `kinds`."""
    otherwise = f"is not offered: it takes {' and '.join(kinds)}"
    return lambda settings, _: None if settings.kind("kv_cache_dtype") in kinds else otherwise


def quantizes_to(kinds: Collection[str]) -> Check[object]:
    """Return the check of `quantization` for an engine that quantizes to `kinds` as it loads."""
    otherwise = "is not offered while loading: give a model that is quantized already"
    return lambda settings, _: None if settings.kind("quantization") in kinds else otherwise


def always_pages(engine: str) -> Check[object]:
    """Return the check of `paged_kv` for an engine that always pages its KV."""
    return not_offered("paged_kv", "off", f"{engine} always pages its KV")


def always_recomputes(engine: str) -> Check[object]:
    """Return the check of `preemption` for an engine that has no swap."""
    return not_offered("preemption", "swap", f"{engine} computes anew what it preempted")


def always_admits(engine: str) -> Check[object]:
    """Return the check of `batching` for an engine that has no static batches."""
    return not_offered("batching", "static", f"{engine} admits requests at every step")


def whole_number(toggle: str) -> Check[object]:
    """Return the check of a toggle whose values are `auto` and numbers."""

    def check(settings: EngineSettings, _: object) -> str | None:
        text = settings.kind(toggle)
        usable = text == "auto" or (text.isdigit() and int(text) > 0)
        return None if usable else "is no whole number of at least 1"

    return check


def draft_model_refused(value: ToggleValue) -> str | None:
    """Return why speculation cannot have the draft model it names, or lacks; None: it can."""
    named = "draft" in dict(value.options)
    if value.kind == "ngram" and named:
        return "drafts without a model: leave draft out"
    needed = value.kind not in ("off", "ngram")
    return "needs a draft model: add draft: MODEL" if needed and not named else None


def chain_refused(value: ToggleValue, engine: str) -> str | None:
    """Return why an engine that drafts plain chains cannot follow the options; None: it can."""
    options = dict(value.options)
    if "tree" in options:
        return f"drafts a tree, which only the embedded engine does here; {engine} is given chains"
    if "acceptance" in options:
        return f"assumes an acceptance, which only the embedded engine does; {engine} shows its own"
    return None

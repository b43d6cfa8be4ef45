"""Engine-neutral settings → TensorRT-LLM's options file and the few flags beside it. Pure.

Not yet run against the real TensorRT-LLM: read from its sources, 1.1 to 1.4.0rc1. Which of file and
flag wins changed between them, so every option that the file may have is in the file alone. Its
values are written as JSON, which every YAML reader takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineError, EngineSettings, ToggleValue

DEFAULT_DRAFT_TOKENS = 5
OPTIONS_FILE = "OPTIONS.yaml"  # what a plan calls the file
POLICIES = {"static": "STATIC_BATCH"}  # of batching; anything else is in-flight batching
_IN_FLIGHT = "GUARANTEED_NO_EVICT"
_MATCHED_TOKENS = 4  # of an n-gram, at most
_KEPT_RECORDS = 100_000  # of finished requests and of iterations, until they are read
_OLDEST = (1, 1)


@dataclass(frozen=True, slots=True)
class OptionNames:
    """The options that differ between versions."""

    draft_type: str | None  # the name of speculation with a draft model; None: not known
    keeps_records: bool  # takes max_stats_len


def option_names(version: str | None) -> OptionNames:
    """Return the options of a version; of an unknown one those that all versions take.

    1.3.0rc3 was read, and so was a later file: a version between them is treated as the later one.
    Raises `EngineError` for a version before 1.1.
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+))?", version or "")
    if found is None:
        return OptionNames(None, keeps_records=False)
    major, minor, patch = int(found[1]), int(found[2]), int(found[3] or 0)
    if (major, minor) < _OLDEST:
        raise EngineError(f"TensorRT-LLM {version} is too old: it must be 1.1 or newer")
    candidate = int(found[4]) if found[4] else 1000
    at = (major, minor, patch, candidate)
    return OptionNames("DraftTarget" if at <= (1, 3, 0, 3) else "Draft_Target", at >= (1, 3, 0, 3))


def serve_words(settings: EngineSettings, port: int | str, options_file: str) -> list[str]:
    """Return the words after the program, with the author's own flags last."""
    flags, _ = split_extra_args(settings.extra_args)
    where = ["--host", "127.0.0.1", "--port", str(port)]
    ours = ["--backend", "pytorch", "--extra_llm_api_options", options_file]
    if settings.trust_remote_code:
        ours.append("--trust_remote_code")
    return ["serve", model_word(settings), *where, *ours, *flags]


def model_word(settings: EngineSettings) -> str:
    """Return the model as it is written on the command line, which no shell reads."""
    model = settings.model
    return str(Path(model).expanduser()) if model.startswith("~") else model


def served_name(settings: EngineSettings) -> str:
    """Return the name that requests must carry: of a folder its last part, else the given name."""
    folder = Path(model_word(settings))
    return folder.name if folder.is_dir() else settings.model


def options_lines(settings: EngineSettings, names: OptionNames) -> list[str]:
    """Return the lines of the options file, the author's `--set` among them."""
    options = _options(settings, names)
    for path, value in split_extra_args(settings.extra_args)[1]:
        _put(options, path, value)
    return [line for key, value in options.items() for line in _lines(key, value)]


def _lines(key: str, value: Any) -> Iterator[str]:
    """Yield an option a line, those of a section below its name."""
    if not isinstance(value, dict) or not value:
        yield f"{key}: {json.dumps(value)}"
        return
    yield f"{key}:"
    for name, inner in value.items():
        yield f"  {name}: {json.dumps(inner)}"


def _options(settings: EngineSettings, names: OptionNames) -> dict[str, Any]:
    toggles = {name: value.kind for name, value in settings.toggles.items()}
    most = settings.running_limit
    graphs = {"enable_padding": True, "max_batch_size": most}
    backend = toggles["attention_backend"]
    return {
        "dtype": settings.dtype,
        **_parallelism(toggles),
        "max_batch_size": most,
        "max_num_tokens": settings.step_tokens,
        "max_seq_len": settings.max_model_len,
        "enable_chunked_prefill": toggles["chunked_prefill"] == "on",
        "disable_overlap_scheduler": toggles["overlap_scheduling"] == "off",
        "kv_cache_config": _kv_cache(settings, toggles),
        "scheduler_config": {
            "capacity_scheduler_policy": POLICIES.get(toggles["batching"], _IN_FLIGHT)
        },
        "cuda_graph_config": graphs if toggles["cuda_graphs"] == "on" else None,
        **({} if backend == "auto" else {"attn_backend": backend.upper()}),
        **_speculation(settings.toggles["speculative"], names),
        **_records(names),
    }


def _parallelism(toggles: Mapping[str, str]) -> dict[str, int]:
    """Return the sizes that are not 1; experts are spread over the GPUs that share a layer."""
    tensor = int(toggles["tensor_parallel"])
    sizes = {
        "pipeline_parallel_size": int(toggles["pipeline_parallel"]),
        "moe_expert_parallel_size": tensor if toggles["expert_parallel"] == "on" else 1,
    }
    return {
        "tensor_parallel_size": tensor,
        **{name: size for name, size in sizes.items() if size > 1},
    }


def _kv_cache(settings: EngineSettings, toggles: Mapping[str, str]) -> dict[str, Any]:
    """Return all of the section: 1.1 takes it in place of its own, not into it."""
    section: dict[str, Any] = {
        "enable_block_reuse": toggles["prefix_caching"] == "on",
        # A hit is a whole block, as in other engines: of a part of one only the block is counted.
        "enable_partial_reuse": False,
        "free_gpu_memory_fraction": settings.memory_utilization,
        "dtype": toggles["kv_cache_dtype"],
    }
    size = toggles["block_size"]
    return section if size == "auto" else {**section, "tokens_per_block": int(size)}


def _speculation(value: ToggleValue, names: OptionNames) -> dict[str, Any]:
    """Return the section, or none at all: up to 1.3.0rc3 an empty one breaks the start."""
    if value.kind == "off":
        return {}
    options = dict(value.options)
    section: dict[str, Any] = {"max_draft_len": options.get("tokens", DEFAULT_DRAFT_TOKENS)}
    if value.kind == "ngram":
        kind = "NGram"
        section["max_matching_ngram_size"] = _MATCHED_TOKENS
    else:
        kind = "Eagle3" if value.kind == "eagle3" else str(names.draft_type)
        section["speculative_model_dir"] = options["draft"]
    return {"speculative_config": {"decoding_type": kind, **section}}


def _records(names: OptionNames) -> dict[str, Any]:
    """Return the options by which the server counts, and streams every token at once."""
    kept = {"max_stats_len": _KEPT_RECORDS} if names.keeps_records else {}
    return {
        "stream_interval": 1,
        "enable_iter_perf_stats": True,
        "return_perf_metrics": True,
        "perf_metrics_max_requests": _KEPT_RECORDS,
        **kept,
    }


def split_extra_args(extra_args: tuple[str, ...]) -> tuple[list[str], list[tuple[str, Any]]]:
    """Return the author's flags, and what `--set KEY=VALUE` adds to the file, in any version."""
    flags: list[str] = []
    sets: list[tuple[str, Any]] = []
    words = iter(extra_args)
    for word in words:
        if word == "--set" or word.startswith("--set="):
            given = word.partition("=")[2] if "=" in word else next(words, "")
            path, equals, text = given.partition("=")
            if not path or not equals:
                raise EngineError(f"extra_args: --set {given!r} is not KEY=VALUE")
            sets.append((path, _value(text)))
        else:
            flags.append(word)
    return flags, sets


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _put(options: dict[str, Any], path: str, value: Any) -> None:
    *sections, key = path.split(".")
    for name in sections:
        below = options.setdefault(name, {})
        if not isinstance(below, dict):
            raise EngineError(f"extra_args: --set {path}: {name} is no section")
        options = below
    options[key] = value

"""What trtllm-serve takes and refuses, version by version: flags as click does, keys as pydantic.

The tables are in `trtllm_options.json`, which was written from TensorRT-LLM's sources before the
adapter was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

FAMILIES = ("1.1", "1.3", "main")
TABLE = json.loads((Path(__file__).parent / "trtllm_options.json").read_text(encoding="utf-8"))
SECTIONS = ("kv_cache_config", "scheduler_config", "cuda_graph_config")
NULLABLE = ("cuda_graph_config",)
CLASSES = {
    "kv_cache_config": "KvCacheConfig",
    "scheduler_config": "SchedulerConfig",
    "cuda_graph_config": "CudaGraphConfig",
}
# What a flag is called among the arguments, where the file may say it too.
ARGUMENTS = {
    "--tp_size": "tensor_parallel_size",
    "--tensor_parallel_size": "tensor_parallel_size",
    "--max_batch_size": "max_batch_size",
    "--max_num_tokens": "max_num_tokens",
    "--max_seq_len": "max_seq_len",
    "--enable_chunked_prefill": "enable_chunked_prefill",
    "--backend": "backend",
}
DEFAULTS = {
    "backend": "pytorch",
    "tensor_parallel_size": 1,
    "max_batch_size": 2048,
    "max_num_tokens": 8192,
    "max_seq_len": None,
    "dtype": "auto",
    "enable_chunked_prefill": False,
    "disable_overlap_scheduler": False,
    "attn_backend": "TRTLLM",
    "stream_interval": 1,
    "enable_iter_perf_stats": False,
    "return_perf_metrics": False,
    "perf_metrics_max_requests": 0,
    "max_stats_len": 1000,
    "kv_cache_config": {},
    "scheduler_config": {},
    "cuda_graph_config": {},
    "speculative_config": None,
}
KV_DEFAULTS = {
    "enable_block_reuse": True,
    "enable_partial_reuse": True,
    "free_gpu_memory_fraction": 0.9,
    "dtype": "auto",
    "tokens_per_block": 32,
}
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "text": (str,),
    "list": (list,),
}


class RefusedError(Exception):
    """What ends the server before it starts: its exit code, and what it writes."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def family_of(version: str) -> str:
    """Return which column of the tables speaks of a version."""
    if version.startswith(("1.0", "1.1")):
        return "1.1"
    early = ("1.2", "1.3.0rc0", "1.3.0rc1", "1.3.0rc2", "1.3.0rc3")
    return "1.3" if version.startswith(early) and len(version) <= len("1.3.0rc3") else "main"


def usage(message: str) -> RefusedError:
    head = "Usage: trtllm-serve serve [OPTIONS] MODEL\nTry 'trtllm-serve serve --help' for help.\n"
    return RefusedError(2, f"{head}\nError: {message}")


def invalid(key: str, message: str) -> RefusedError:
    head = 'Traceback (most recent call last):\n  File "serve.py", line 1, in serve\n'
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs\n"
    return RefusedError(1, f"{head}{error}{key}\n  {message}")


def parse_flags(words: list[str], family: str) -> dict[str, Any]:
    """Return flag → value of `serve MODEL --flags…`, the model as `model`."""
    known = {flag["name"]: flag for flag in TABLE["flags"] if family in flag["versions"].split()}
    found: dict[str, Any] = {}
    left = iter(words[1:] if words[:1] == ["serve"] else words)
    for word in left:
        name, equals, text = word.partition("=")
        if not name.startswith("--"):
            if "model" in found:
                raise usage(f"Got unexpected extra argument ({word})")
            found["model"] = word
        elif name not in known:
            raise usage(f"No such option: {name}")
        elif known[name]["kind"] == "flag":
            found[name] = True
        else:
            found[name] = flag_value(known[name], text if equals else next(left, None))
    if "model" not in found:
        raise usage("Missing argument 'MODEL'.")
    return found


def flag_value(flag: Mapping[str, Any], text: str | None) -> Any:
    if text is None:
        raise usage(f"Option '{flag['name']}' requires an argument.")
    if "choices" in flag and text not in flag["choices"]:
        raise usage(
            f"Invalid value for '{flag['name']}': '{text}' is not one of {flag['choices']}."
        )
    try:
        return {"int": int, "float": float}.get(flag["kind"], str)(text)
    except ValueError:
        raise usage(f"Invalid value for '{flag['name']}': '{text}' is not valid.") from None


def read_options(path: str) -> Any:
    """Return the options file as the server reads it."""
    return yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}


def check_options(options: Mapping[str, Any], family: str) -> None:
    """Raise `RefusedError` for a key or a value that a version does not take."""
    for key, value in options.items():
        if key == "speculative_config":
            check_speculation(value, family)
        elif key in SECTIONS:
            if not isinstance(value, dict) and not (value is None and key in NULLABLE):
                raise invalid(key, "Input should be a valid dictionary [type=model_type]")
            for name, inner in (value or {}).items():
                check_value(f"{key}.{name}", TABLE[key].get(name), inner, family)
        else:
            check_value(key, TABLE["options"].get(key), value, family)
    most, tokens = options.get("max_batch_size", 2048), options.get("max_num_tokens", 8192)
    if most > tokens:
        raise invalid("max_batch_size", f"Value error, max_batch_size [{most}] should be less …")


def check_value(key: str, row: Mapping[str, Any] | None, value: Any, family: str) -> None:
    if row is None or family not in row["versions"].split():
        raise invalid(key, "Extra inputs are not permitted [type=extra_forbidden]")
    kind = row["kind"]
    if kind == "any" or (kind.endswith("?") and value is None):
        return
    if kind == "choice":
        if value not in row.get(family, row["choices"]):
            raise invalid(key, f"Input should be one of {row['choices']} [type=enum]")
    elif not isinstance(value, PYTHON_TYPES[kind.rstrip("?")]) or (
        isinstance(value, bool) and kind != "bool"
    ):
        raise invalid(key, f"Input should be a valid {kind} [type={kind}_type]")


def check_speculation(section: Any, family: str) -> None:
    if section is None:
        if family == "main":
            return
        text = "AttributeError: 'NoneType' object has no attribute 'get'"
        raise RefusedError(1, f"Traceback (most recent call last):\n{text}")
    kind = TABLE["decoding_types"].get(section.get("decoding_type"))
    if kind is None or family not in kind["versions"].split():
        raise RefusedError(1, f"ValueError: Invalid decoding type: {section.get('decoding_type')}")
    rows = {**TABLE["speculative_config"], **kind["keys"]}
    for name, value in section.items():
        if name != "decoding_type":
            check_value(f"speculative_config.{name}", rows.get(name), value, family)
    for need in kind["needs"].get(family, ()):
        if not (section.get(need) or section.get(f"{need}_dir")):
            raise RefusedError(1, f"AssertionError: {need} must be given")


def resolved(flags: Mapping[str, Any], options: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Return the arguments: of what file and flags both say, the newer versions take the flag."""
    typed = {ARGUMENTS[name]: value for name, value in flags.items() if name in ARGUMENTS}
    fraction = flags.get("--kv_cache_free_gpu_memory_fraction")
    own_kv = {} if fraction is None else {"free_gpu_memory_fraction": fraction}
    both = {**options, **typed} if family == "main" else {**typed, **options}
    found = {**DEFAULTS, **both, "model": flags["model"]}
    section = options.get("kv_cache_config", {})
    if family != "1.1":  # there the file's section stood in place of the flags'
        section = {**section, **own_kv} if family == "main" else {**own_kv, **section}
    found["kv_cache_config"] = {**KV_DEFAULTS, **(section or own_kv)}
    found["scheduler_config"] = {
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        **found["scheduler_config"],
    }
    return found


def argument_line(arguments: Mapping[str, Any], family: str) -> str:
    """Return the line that is logged below `LLM Args:`."""
    return " ".join(f"{key}={written(key, value, family)}" for key, value in arguments.items())


def written(key: str, value: Any, family: str) -> str:
    if key == "capacity_scheduler_policy":
        return f"<CapacitySchedulerPolicy.{value}: '{value}'>"
    if key == "speculative_config" and value is not None:
        kind = str(value["decoding_type"]).replace("_", "")
        inner = {name: one for name, one in value.items() if name != "decoding_type"}
        return f"{kind}DecodingConfig({', '.join(pairs(inner, family))})"
    if isinstance(value, dict):
        name = "DecodeCudaGraphConfig" if family == "main" and "graph" in key else CLASSES[key]
        return f"{name}({', '.join(pairs(value, family))})"
    return repr(value)


def pairs(section: Mapping[str, Any], family: str) -> Iterator[str]:
    for name, value in section.items():
        spelled = "speculative_model" if name == "speculative_model_dir" else name
        yield f"{spelled}={written(name, value, family)}"

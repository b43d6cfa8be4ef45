"""What a GPU lacks, so that a toggle value means less on it than its name suggests."""

from __future__ import annotations

import re

# NVIDIA's before compute capability 8.9: Volta, Turing and Ampere.
_WITHOUT_FP8 = re.compile(
    r"(?:v100|t4|a2|a10g?|a16|a30|a40|a100|a800|a[456]000|rtx-?[23]0\d0)\b", re.IGNORECASE
)
_FP8 = {
    "quantization": "for weights only: {gpu} has no FP8 arithmetic, so kernels widen them",
    "kv_cache_dtype": "stored only: {gpu} has no FP8 arithmetic, and not every attention backend "
    "widens it",
}


def remark(gpu: str, toggle: str, value: str) -> str | None:
    """Return what a toggle value means on `gpu`, where that is less than its name suggests.

    Source: vLLM's documentation of FP8 (weight-only Marlin kernels below compute capability 8.9)
    and its Triton backend, which refuses an FP8 cache there; SGLang has the same kernels.
    """
    if value != "fp8" or not _WITHOUT_FP8.match(gpu.strip()):
        return None
    found = _FP8.get(toggle)
    return None if found is None else found.format(gpu=gpu.strip())

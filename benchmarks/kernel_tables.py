"""Layer times of models from tables of single kernels, and published end-to-end values.

The folder contains any of

    vidur/layer_nonattention.csv      pieces of a layer by tokens (microsoft/vidur)
    ops/gemm_a100_bf16.csv            products (m, n, k)          (NVIDIA aiconfigurator)
    ops/generation_attention_a100.csv decode attention of a layer
    ops/context_attention_a100.csv    prefill attention of a layer
    ops/all_reduce_a100_sxm.csv       all-reduces by bytes
    published.csv                     end-to-end values

A point without a table, or outside its table, is skipped and never extrapolated.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from harness.adapters.embedded.published import PublishedValue
from harness.adapters.embedded.step_time.model_shape import ModelShape
from harness.adapters.embedded.step_time.models import find_model

SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128)
CONTEXTS = (512, 1024, 2048, 4096, 8192)
PROMPTS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_ENGINE = "vllm"  # the engine to use in [ops]
_CUSTOM_ALL_REDUCE_BYTES = 2**22  # larger messages use NCCL
_MODELS = {
    "Llama-2-7b-hf": "llama-2-7b",
    "LLaMA-7B": "llama-2-7b",
    "Llama-2-70b-hf": "llama-2-70b",
    "Llama-2-70B": "llama-2-70b",
    "Meta-Llama-3-8B": "llama-3-8b",
    "Meta-Llama-3-70B": "llama-3-70b",
    "Llama-3.1-70B": "llama-3.1-70b",
}
_LAYERS = (
    ("Llama-2-70b-hf", 4),
    ("Meta-Llama-3-70B", 4),
    ("Llama-2-70b-hf", 2),
    ("Meta-Llama-3-8B", 1),
)
_STATIC_VERSIONS = ("0.5", "0.6")  # their values are for static batches
_EARLY_VERSIONS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "~0.2", "2023", "2024")
_BETWEEN = ("input_layernorm_ms", "attn_rope_ms", "post_attention_layernorm_ms", "mlp_act_ms")
_GPUS = {
    "A100-80GB": "a100-80gb",
    "A100-40GB": "a100-40gb",
    "H100-80GB": "h100-80gb",
    "L40S": "l40s",
}
_QUANTIZATION = {"fp16": "none", "bf16": "none", "fp8": "fp8"}
_LOADS = {"batch": "batch", "concurrency": "between_tokens"}


class _Line:
    """A piecewise linear curve through measured points, undefined outside of them."""

    def __init__(self) -> None:
        self._points: dict[float, float] = {}

    def add(self, x: float, y: float) -> None:
        self._points[x] = y

    def at(self, x: float) -> float | None:
        """Return the value at `x`; None outside the measured points."""
        if x in self._points:
            return self._points[x]
        known = sorted(self._points)
        after = bisect_left(known, x)
        if not 0 < after < len(known):
            return None
        low, high = known[after - 1], known[after]
        share = (x - low) / (high - low)
        return self._points[low] * (1 - share) + self._points[high] * share


class KernelTables:
    """The tables of one folder. Missing tables are empty."""

    def __init__(self, folder: Path) -> None:
        self._published = _rows(folder / "published.csv")
        self._gemm: dict[tuple[str, str], _Line] = defaultdict(_Line)
        for row in _rows(folder / "ops" / "gemm_a100_bf16.csv"):
            if row["backend"] == _ENGINE:
                self._gemm[row["n"], row["k"]].add(int(row["m"]), float(row["latency_ms"]))
        self._reduce: dict[tuple[str, int], _Line] = defaultdict(_Line)
        for row in _rows(folder / "ops" / "all_reduce_a100_sxm.csv"):
            # The tables give sizes in 16-bit numbers.
            gpus, size = int(row["num_gpus"]), 2 * int(row["message_size"])
            self._reduce[row["kernel_source"], gpus].add(size, float(row["latency_ms"]))
        self._attention: dict[tuple[str, ...], _Line] = defaultdict(_Line)
        for name, length in (("generation", "kv_len"), ("context", "isl")):
            for row in _rows(folder / "ops" / f"{name}_attention_a100.csv"):
                if row["backend"] == _ENGINE:
                    heads, batch = (row["num_heads"], row["num_key_value_heads"]), row["batch_size"]
                    line = self._attention[name, *heads, batch]
                    line.add(int(row[length]), float(row["latency_ms"]))
        self._products: dict[tuple[str, int], _Line] = defaultdict(_Line)
        self._between: dict[tuple[str, int], _Line] = defaultdict(_Line)
        for row in _rows(folder / "vidur" / "layer_nonattention.csv"):
            if row["gpu"] == "A100":
                layer, tokens = (row["model"], int(row["tp"])), int(row["tokens"])
                self._products[layer].add(tokens, float(row["gemm_ms"]))
                between_ms = sum(float(row[piece]) for piece in (*_BETWEEN, "add_ms"))
                self._between[layer].add(tokens, between_ms)

    def values(self) -> Iterator[PublishedValue]:
        """Return every value in the tables."""
        for name, gpus in _LAYERS:
            for source in ("vidur", "aiconfigurator"):
                for sequences in SEQUENCES:
                    for context in CONTEXTS:
                        yield from self._layers(name, gpus, source, (sequences, context))
                for tokens in PROMPTS:
                    yield from self._layers(name, gpus, source, (0, tokens))
        yield from self.published()

    def published(self) -> Iterator[PublishedValue]:
        """Return the published TTFTs, batches and closed loops of known models and GPUs."""
        for row in self._published:
            gpu, name = _GPUS.get(row["hardware"].split(" ")[0]), _MODELS.get(row["model"])
            load, _, sequences = row["rate_or_concurrency"].partition(" ")
            kind, quantization = _LOADS.get(load), _QUANTIZATION.get(row["dtype"])
            if gpu is None or name is None or kind is None or quantization is None:
                continue
            if kind == "between_tokens" and row["metric"] != "TPOT":
                continue
            engine, gpus = _software(row["engine"], row.get("version", "")), int(row["gpus"])
            yield PublishedValue(
                kind="first_token" if row["out_len"] == "1" else kind,
                gpu=gpu,
                gpus=gpus,
                model=name,
                sequences=int(sequences),
                prompt_tokens=int(row["in_len"]),
                output_tokens=int(row["out_len"]),
                value=float(row["value"]) * (gpus if row["unit"].endswith("/GPU") else 1),
                source=f"{row['source'].split(' ')[0]} {row['engine']}",
                engine=engine,
                quantization=quantization,
                kv_cache_dtype="fp8"
                if (engine, quantization) == ("trtllm-2023", "fp8")
                else "auto",
            )

    def _layers(
        self, name: str, gpus: int, source: str, work: tuple[int, int]
    ) -> Iterator[PublishedValue]:
        """Return the time of all layers of a step if all its kernels are in the tables."""
        model, (sequences, length) = find_model(_MODELS[name]), work
        tokens = sequences or length
        pieces = (
            self._products_ms(model, name, gpus, source, tokens),
            self._between[name, gpus].at(tokens),
            self._reduce_ms(gpus, 2 * tokens * model.hidden),
            self._attention_ms(model, gpus, work),
        )
        known = [piece for piece in pieces if piece is not None]
        if len(known) == len(pieces):
            yield PublishedValue(
                kind="decode" if sequences else "prefill",
                gpu="a100-80gb",
                gpus=gpus,
                model=model.name,
                sequences=sequences or 1,
                prompt_tokens=length,
                output_tokens=0,
                value=model.layers * sum(known),
                source=source,
            )

    def _products_ms(
        self, model: ModelShape, name: str, gpus: int, source: str, tokens: int
    ) -> float | None:
        """Return the time of a layer's products.

        [ops] has all products only for Llama-3-70B on 4 GPUs. A width between two measured widths
        uses their mean.
        """
        if source == "vidur":
            return self._products[name, gpus].at(tokens)
        if (model.hidden, gpus) != (8192, 4):
            return None
        shares = {("2560", "8192"): 1.0, ("8192", "2048"): 1.0, ("8192", "7168"): 1.0}
        shares |= {("12288", "8192"): 0.5, ("16384", "8192"): 0.5}
        times = [(share, self._gemm[shape].at(tokens)) for shape, share in shares.items()]
        known = [share * time for share, time in times if time is not None]
        return sum(known) if len(known) == len(times) else None

    def _reduce_ms(self, gpus: int, message_bytes: int) -> float | None:
        """Return the time of a layer's two all-reduces."""
        if gpus == 1:
            return 0.0
        kernel = "vLLM_custom_graph" if message_bytes <= _CUSTOM_ALL_REDUCE_BYTES else "NCCL"
        time_ms = self._reduce[kernel, gpus].at(message_bytes)
        return None if time_ms is None else 2 * time_ms

    def _attention_ms(self, model: ModelShape, gpus: int, work: tuple[int, int]) -> float | None:
        """Return the time of one layer's attention."""
        sequences, length = work
        name = "generation" if sequences else "context"
        heads = (str(model.heads // gpus), str(model.kv_heads // gpus))
        return self._attention[name, *heads, str(sequences or 1)].at(length)


def _software(engine: str, version: str) -> str:
    """Return the software of a row's measurement; `current` if its version is unknown."""
    if engine == "TensorRT-LLM" and version.startswith(_STATIC_VERSIONS):
        return "trtllm-2023"
    if not version.startswith(_EARLY_VERSIONS):
        return "current"
    return {"vLLM": "vllm-2024", "TensorRT-LLM": "trtllm-2024"}.get(engine, "current")


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

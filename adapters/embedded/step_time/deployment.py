"""A deployment: one model on some GPUs, with the toggles that change step time and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.adapters.base import EngineError, UnsupportedToggleError
from harness.adapters.embedded.step_time.calibration import ALL_REDUCE_S, EAGLE3_VOCABULARY
from harness.adapters.embedded.step_time.hardware import Gpu
from harness.adapters.embedded.step_time.model_shape import ModelShape
from harness.adapters.embedded.step_time.models import find_model

SOFTWARE = ("current", "vllm-2024", "trtllm-2023", "trtllm-2024")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One served model and its hardware, checked at construction.

    Raises `EngineError` when the GPUs cannot share the model, `UnsupportedToggleError` for FP8
    weights on a GPU without FP8 arithmetic.
    """

    model: ModelShape
    gpu: Gpu
    tensor_parallel: int = 1  # GPUs that share every layer
    quantization: str = "none"  # none | fp8 | int8 | int4; the last two store weights only
    kv_cache_dtype: str = "auto"  # auto is 16 bit
    cuda_graphs: bool = True
    overlap: bool = True
    software: str = "current"  # one of SOFTWARE; older ones are for published measurements
    speculative: str = "off"  # off | ngram | draft | eagle | eagle3
    draft: ModelShape | None = None  # for `draft`; None: the default small model of the family
    draft_branches: int = 1  # children of each node of a draft tree; 1 is a chain
    draft_depth: int | None = None  # levels of the draft tree; None: a chain

    def __post_init__(self) -> None:
        _check_sharing(self.model, self.tensor_parallel)
        if self.software not in SOFTWARE:
            raise EngineError(f"unknown software {self.software!r}; expected {', '.join(SOFTWARE)}")
        if self.software == "vllm-2024" and self.overlap:
            raise UnsupportedToggleError("overlap_scheduling: vLLM of 2024 does not support it")
        if self.speculative == "ngram" and self.draft_depth is not None:
            raise UnsupportedToggleError(
                "speculative ngram finds one continuation and has no tree; remove branches and "
                "depth, or use eagle, eagle3 or draft"
            )
        if self.quantization == "fp8" and self.gpu.fp8_flops_per_s is None:
            raise UnsupportedToggleError(
                f"quantization fp8 needs FP8 arithmetic, which {self.gpu.name} does not have; "
                "use int8 or int4, which quantize only the stored weights"
            )
        if self.speculative == "draft" and self.draft is None and not self.model.default_draft:
            error = EngineError(f"{self.model.name} has no default draft model")
            error.add_note("set one with {method: draft, draft: MODEL}")
            raise error

    @property
    def drafter(self) -> ModelShape | None:
        """The draft model; None without speculation and for prompt lookup.

        EAGLE's draft model is one dense layer of the target with the target's embeddings. EAGLE-3
        has its own LM head with a smaller vocabulary.
        """
        if self.speculative == "draft":
            return self.draft or find_model(self.model.default_draft or "")
        one_layer = replace(
            self.model,
            name=f"{self.model.name}-{self.speculative}",
            layers=1,
            intermediate=self.model.active_intermediate,
            experts=None,
        )
        if self.speculative == "eagle":
            return one_layer
        if self.speculative == "eagle3":
            return replace(one_layer, vocabulary=EAGLE3_VOCABULARY)
        return None

    @property
    def drafter_input_parameters(self) -> int:
        """Weights of the product that combines the 2 (EAGLE) or 3 (EAGLE-3) inputs of the layer."""
        inputs = {"eagle": 2, "eagle3": 3}.get(self.speculative, 0)
        return inputs * self.model.hidden**2

    @property
    def drafter_parallel(self) -> int:
        """GPUs that share the drafter: all GPUs of the target, or 1 if each has its own copy."""
        drafter = self.drafter
        return self.tensor_parallel if drafter and shareable(drafter, self.tensor_parallel) else 1


def shareable(model: ModelShape, gpus: int) -> bool:
    """Return whether `gpus` GPUs can split the model's heads evenly; KV heads may be copied."""
    even_kv = model.kv_heads % gpus == 0 or gpus % model.kv_heads == 0
    widths = [model.intermediate]
    if model.experts:
        widths = [model.experts.intermediate, model.experts.shared_intermediate]
    return model.heads % gpus == 0 and even_kv and all(width % gpus == 0 for width in widths)


def check_context(model: ModelShape, max_model_len: int) -> None:
    """Raise `EngineError` when `max_model_len` exceeds the longest context of the model."""
    if not 1 <= max_model_len <= model.max_position:
        error = EngineError(
            f"max_model_len {max_model_len:,} is outside 1 to {model.max_position:,} "
            f"(the longest context of {model.name})"
        )
        error.add_note(f"set base.max_model_len to at most {model.max_position}")
        error.about = "max_model_len"
        raise error


def _check_sharing(model: ModelShape, gpus: int) -> None:
    possible = [count for count in (1, *ALL_REDUCE_S) if shareable(model, count)]
    if gpus not in possible:
        error = EngineError(
            f"tensor_parallel {gpus} cannot split {model.name} evenly: it has "
            f"{model.heads} heads and {model.kv_heads} KV heads"
        )
        error.add_note(f"set tensor_parallel to {', '.join(map(str, possible))}")
        error.about = "tensor_parallel"
        raise error

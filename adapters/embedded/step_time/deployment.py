"""What runs on what: one model on some GPUs with the switches that change step time and memory."""

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
    """One served model and the hardware under it; checked when made.

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
    software: str = "current"  # or, for values that were published then, one of SOFTWARE
    speculative: str = "off"  # off | ngram | draft | eagle | eagle3
    draft: ModelShape | None = None  # for `draft`; None: the usual small model of the family
    draft_branches: int = 1  # children of each node of a draft tree; 1 is a chain
    draft_depth: int | None = None  # levels of the tree; None of a chain, as deep as its tokens

    def __post_init__(self) -> None:
        _check_sharing(self.model, self.tensor_parallel)
        if self.software not in SOFTWARE:
            raise EngineError(f"software {self.software!r} is none of {', '.join(SOFTWARE)}")
        if self.software == "vllm-2024" and self.overlap:
            raise UnsupportedToggleError("overlap_scheduling: vLLM had none in 2024")
        if self.speculative == "ngram" and self.draft_depth is not None:
            raise UnsupportedToggleError(
                "speculative ngram looks up one continuation: a tree needs a network that drafts"
            )
        if self.quantization == "fp8" and self.gpu.fp8_flops_per_s is None:
            raise UnsupportedToggleError(
                f"quantization fp8 needs FP8 arithmetic, which {self.gpu.name} does not have; "
                "int8 and int4 store weights only"
            )
        if self.speculative == "draft" and self.draft is None and not self.model.default_draft:
            error = EngineError(f"no small model is known that drafts for {self.model.name}")
            error.add_note("name one with {method: draft, draft: MODEL}")
            raise error

    @property
    def drafter(self) -> ModelShape | None:
        """The network that drafts; None when nothing or a mere lookup does.

        EAGLE's is one layer of the target, dense, with the target's embeddings; EAGLE-3's head
        scores a short vocabulary of its own.
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
        """Weights of the product that joins an EAGLE layer's inputs: 2 (EAGLE) or 3 (EAGLE-3)."""
        inputs = {"eagle": 2, "eagle3": 3}.get(self.speculative, 0)
        return inputs * self.model.hidden**2

    @property
    def drafter_parallel(self) -> int:
        """GPUs that share the drafter: those of the target, or each its own copy."""
        drafter = self.drafter
        return self.tensor_parallel if drafter and shareable(drafter, self.tensor_parallel) else 1


def shareable(model: ModelShape, gpus: int) -> bool:
    """Whether `gpus` GPUs can split the model's heads evenly; KV heads may be copied."""
    even_kv = model.kv_heads % gpus == 0 or gpus % model.kv_heads == 0
    widths = [model.intermediate]
    if model.experts:
        widths = [model.experts.intermediate, model.experts.shared_intermediate]
    return model.heads % gpus == 0 and even_kv and all(width % gpus == 0 for width in widths)


def check_context(model: ModelShape, max_model_len: int) -> None:
    """Raise `EngineError` when `max_model_len` is longer than the model was made for."""
    if not 1 <= max_model_len <= model.max_position:
        error = EngineError(
            f"max_model_len {max_model_len:,} is outside 1 to {model.max_position:,}, "
            f"the longest context of {model.name}"
        )
        error.add_note(f"set base.max_model_len to at most {model.max_position}")
        error.about = "max_model_len"
        raise error


def _check_sharing(model: ModelShape, gpus: int) -> None:
    possible = [count for count in (1, *ALL_REDUCE_S) if shareable(model, count)]
    if gpus not in possible:
        error = EngineError(
            f"tensor_parallel {gpus} cannot share {model.name}: "
            f"{model.heads} heads, {model.kv_heads} KV heads"
        )
        error.add_note(f"possible on one machine: {', '.join(map(str, possible))}")
        error.about = "tensor_parallel"
        raise error

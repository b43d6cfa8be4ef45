"""Limits that every real engine has, found before a start takes minutes to find them."""

from __future__ import annotations

from harness.adapters.base import EngineError, EngineSettings
from harness.adapters.model_folder import context_tokens, model_folder


def check_limits(settings: EngineSettings, *, batches: tuple[str, ...]) -> None:
    """Raise `EngineError` for sizes that contradict each other or the machine.

    `batches` are the values of the toggle batching that need room for several sequences.
    """
    if settings.toggles["batching"].kind in batches and settings.max_num_seqs == 1:
        raise EngineError("max_num_seqs 1 is no batching at all: set the toggle batching to none")
    wanted = int(settings.toggles["tensor_parallel"].kind)
    if wanted > settings.gpu_count:
        raise EngineError(f"tensor_parallel {wanted} needs more than {settings.gpu_count} GPUs")


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

"""The two operations of SGLang's `intel_amx` attention in plain torch: slow, and without AMX.

Causal attention over the slots of the KV cache, one request at a time, registered under the names
that SGLang expects. SGLang passes only positional arguments. Features that a small model does not
need (sliding windows, capped logits, sinks, encoders, scaled KV) raise an error.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    allowed: torch.Tensor | None,
) -> torch.Tensor:
    """Return (tokens, heads, width), with each KV head repeated for its query heads."""
    shared = queries.shape[1] != keys.shape[1]
    found = scaled_dot_product_attention(
        *(each.transpose(0, 1).unsqueeze(0) for each in (queries, keys, values)),
        attn_mask=allowed,
        scale=scale,
        enable_gqa=shared,
    )
    return found[0].transpose(0, 1)


def _refuse(*, window: int, cap: float, scales: tuple[float, float], others: bool) -> None:
    if others or window > 0 or cap > 0 or scales != (1.0, 1.0):
        raise NotImplementedError("this attention supports only plain causal attention")


def extend_attention_cpu(  # noqa: PLR0913, PLR0917  SGLang's signature
    queries: torch.Tensor,
    new_keys: torch.Tensor,  # noqa: ARG001  already in the cache
    new_values: torch.Tensor,  # noqa: ARG001
    out: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scale: float,
    value_scale: float,
    table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    new_lengths: torch.Tensor,
    starts: torch.Tensor,
    longest: int,  # noqa: ARG001
    scale: float,
    cap: float,
    crosses: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree: torch.Tensor | None = None,
    causal: bool = True,
) -> None:
    """Attend from new tokens to all earlier tokens, and from drafts to the tokens in `tree`."""
    others = crosses or encoder_lengths is not None or sinks is not None or not causal
    _refuse(window=window, cap=cap, scales=(key_scale, value_scale), others=others)
    requests = zip(*(each.tolist() for each in (rows, lengths, new_lengths, starts)), strict=True)
    for request, (row, length, new, start) in enumerate(requests):
        slots = table[row, :length].long()
        allowed = torch.ones((new, length), dtype=torch.bool).tril(length - new)
        if tree is not None:
            drafts = tree.reshape(-1)[request * new * new :][: new * new]
            allowed[:, length - new :] = drafts.view(new, new).bool()
        span = slice(start, start + new)
        found = _attend(queries[span], keys[slots], values[slots], scale, allowed)
        out[span] = found.to(out.dtype)


def decode_attention_cpu(  # noqa: PLR0913, PLR0917
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_scale: float,
    value_scale: float,
    out: torch.Tensor,
    new_keys: torch.Tensor | None,
    new_values: torch.Tensor | None,
    new_slots: torch.Tensor,
    workspace: torch.Tensor,  # noqa: ARG001
    table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
    cap: float,
    crosses: bool,
    window: int,
    encoder_lengths: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Write each request's new token into the cache, and attend from it to all its tokens."""
    others = crosses or encoder_lengths is not None or sinks is not None
    _refuse(window=window, cap=cap, scales=(key_scale, value_scale), others=others)
    if new_keys is not None and new_values is not None:
        keys[new_slots] = new_keys.reshape(-1, *keys.shape[1:]).to(keys.dtype)
        values[new_slots] = new_values.reshape(-1, *values.shape[1:]).to(values.dtype)
    for request, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        slots, one = table[row, :length].long(), slice(request, request + 1)
        out[one] = _attend(queries[one], keys[slots], values[slots], scale, None).to(out.dtype)


torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu

"""A replacement of `sglang-kernel` for CPUs: the names that SGLang 0.5.23 imports on a CPU.

This code is not from SGLang, whose kernel wheel needs CUDA. It implements the same names and
signatures in torch: the slots of tokens in the KV cache, and the layout and acceptance of draft
tokens. SGLang itself uses torch for the model on a CPU. All other names are omitted on purpose.

In all functions `rows` is the row of each request in `table` (request × position → cache slot).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from sgl_kernel import attention  # registers its two operations
from sgl_kernel.speculative import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.4.10+cpu.stand.in"
__all__ = ["attention", "build_tree_kernel_efficient_cpu", "verify_tree_greedy_cpu"]


def _spans(
    rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> Iterator[tuple[int, slice, slice]]:
    """Yield the row and positions of each request, and their range when all are packed."""
    packed = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = max(0, end - start)
        yield row, slice(start, start + count), slice(packed, packed + count)
        packed += count


def assign_req_to_token_pool_cpu(
    rows: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    width: int,  # noqa: ARG001  width of the table
) -> None:
    """Write the slots of new tokens into the table."""
    for row, positions, packed in _spans(rows, starts, ends):
        table[row, positions] = slots[packed].to(table.dtype)


def assign_extend_cache_locs_cpu(
    rows: torch.Tensor,
    table: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    width: int,  # noqa: ARG001
) -> None:
    """Read slots from the table into a packed tensor."""
    for row, positions, packed in _spans(rows, starts, ends):
        slots[packed] = table[row, positions].to(slots.dtype)


def assign_draft_cache_locs_contiguous_cpu(  # noqa: PLR0913, PLR0917  SGLang's signature
    rows: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    width: int,
    topk: int,
    steps: int,
) -> None:
    """Read the slots of all draft tokens from the table, directly after the existing tokens."""
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, slots, width)


def build_draft_decode_metadata_cpu(
    table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    steps: int,
    width: int,
) -> torch.Tensor:
    """Return a table with one row per branch: the request's tokens, then the branch's drafts."""
    branches = torch.zeros((len(rows), topk, width), dtype=table.dtype)
    for request, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        branches[request, :, :length] = table[row, :length]
        drafts = table[row, length : length + topk * steps].view(topk, steps)
        branches[request, :, length : length + steps] = drafts
    return branches.view(-1, width)


def fill_bonus_tokens_cpu(
    accepted: torch.Tensor, lengths: torch.Tensor, bonus: torch.Tensor, stride: int
) -> None:
    """Return the last token of each request."""
    last = torch.arange(len(lengths)) * stride + lengths.long() - 1
    bonus[: len(lengths)] = accepted.reshape(-1)[last].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(
    accepted: torch.Tensor, slots: torch.Tensor, kept: torch.Tensor
) -> None:
    """Pack the slots of accepted tokens; -1 means no token."""
    chosen = accepted[accepted >= 0].long()
    kept[: len(chosen)] = slots[chosen].to(kept.dtype)


def rotate_input_ids_cpu(
    ids: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    following: torch.Tensor,
    places: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens left by one, and append its next token."""
    ends = starts + lengths
    for request, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > start:
            ids[start : end - 1] = ids[start + 1 : end].clone()
            place = end - 1 if places is None else int(places[request])
            ids[place] = following.reshape(-1)[request]


def copy_all_layer_kv_cache_cpu(
    addresses: torch.Tensor, strides: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy slots in the buffers of all layers, which are given by address."""
    if not len(targets):
        return
    slots = int(torch.maximum(targets.max(), sources.max())) + 1
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        layer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        layer[targets.long()] = layer[sources.long()]

"""A stand-in for `sglang-kernel` where there is no GPU: what SGLang 0.5.23 imports of it on a CPU.

None of this is SGLang's: its wheel of kernels needs CUDA. Here are its names and signatures, in
torch: where tokens lie in the KV cache, and how drafts are laid out and accepted. The model's own
arithmetic is torch's, which SGLang takes by itself on a CPU. Any other name is missing on purpose.

In all of them `rows` says which row of `table` (request × position → cache slot) is a request's.
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
    """Yield each request's row, its positions, and where they lie when packed one after another."""
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
    width: int,  # noqa: ARG001  of the table, which a tensor knows
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
    """Read slots out of the table, packed."""
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
    """Read the slots of all drafts out of the table: those right after what is there."""
    assign_extend_cache_locs_cpu(rows, table, lengths, lengths + topk * steps, slots, width)


def build_draft_decode_metadata_cpu(
    table: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    steps: int,
    width: int,
) -> torch.Tensor:
    """Return a table with a row a branch: the request's own tokens, then the branch's drafts."""
    branches = torch.zeros((len(rows), topk, width), dtype=table.dtype)
    for request, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        branches[request, :, :length] = table[row, :length]
        drafts = table[row, length : length + topk * steps].view(topk, steps)
        branches[request, :, length : length + steps] = drafts
    return branches.view(-1, width)


def fill_bonus_tokens_cpu(
    accepted: torch.Tensor, lengths: torch.Tensor, bonus: torch.Tensor, stride: int
) -> None:
    """Pick the last token that each request was given."""
    last = torch.arange(len(lengths)) * stride + lengths.long() - 1
    bonus[: len(lengths)] = accepted.reshape(-1)[last].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(
    accepted: torch.Tensor, slots: torch.Tensor, kept: torch.Tensor
) -> None:
    """Pack the slots of what was accepted; -1 stands for nothing."""
    chosen = accepted[accepted >= 0].long()
    kept[: len(chosen)] = slots[chosen].to(kept.dtype)


def rotate_input_ids_cpu(
    ids: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    following: torch.Tensor,
    places: torch.Tensor | None = None,
) -> None:
    """Move each request's tokens one to the left, and put the one that follows at their end."""
    ends = starts + lengths
    for request, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > start:
            ids[start : end - 1] = ids[start + 1 : end].clone()
            place = end - 1 if places is None else int(places[request])
            ids[place] = following.reshape(-1)[request]


def copy_all_layer_kv_cache_cpu(
    addresses: torch.Tensor, strides: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy slots to others, in the buffers of all layers, which are given by their addresses."""
    if not len(targets):
        return
    slots = int(torch.maximum(targets.max(), sources.max())) + 1
    for address, stride in zip(addresses.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (slots * stride)).from_address(address)
        layer = torch.frombuffer(memory, dtype=torch.uint8).view(slots, stride)
        layer[targets.long()] = layer[sources.long()]

"""What `harness capacity` prints: the facts in at most 100 columns, each with its unit."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from harness.adapters.embedded import Capacity, DecodeStep
from harness.results import count, significant

_WIDTH = 100
_GIB = 2**30
_CACHE = {"auto": "FP16", "fp8": "FP8", "int8": "INT8", "int4": "INT4"}
_WEIGHTS = {"none": "16-bit", "fp8": "FP8", "int8": "INT8", "int4": "INT4"}


def capacity_lines(found: Capacity) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from _heading(found)
    yield from ("", *_memory(found))
    if found.memory.kv_room_tokens:
        yield from ("", *_users(found), "", *_layouts(found))
    yield from ("", *_decode(found), "", *_prefill(found), "", *_basis(found))


def _heading(found: Capacity) -> Iterator[str]:
    weights, cache = _WEIGHTS[found.quantization], _CACHE[found.kv_cache_dtype]
    yield from _wrapped(
        f"{found.model} on {found.tensor_parallel} × {found.gpu}, simulated: {weights} weights, "
        f"{cache} KV cache, contexts of {found.context_tokens:,} tokens",
        indent="",
    )
    if found.copies > 1:
        yield from _wrapped(
            f"{found.gpu_count} GPUs hold {found.copies} copies of the model, each on "
            f"{count(found.tensor_parallel, 'GPU')}; all figures are of "
            f"one copy, users and tokens/s of all are {found.copies} times these"
        )
    if found.context_tokens > found.longest_context_tokens:
        yield from _wrapped(
            f"{found.model} was made for {found.longest_context_tokens:,} tokens: a server refuses "
            "longer contexts; the figures say what the memory would hold"
        )
    if not found.fit.fits:
        yield from _wrapped(f"DOES NOT FIT: {found.fit.why_not}")
        for remedy in found.fit.remedies:
            yield from _wrapped(f"  {remedy}", indent="    ")


def _memory(found: Capacity) -> Iterator[str]:
    memory, token = found.memory, found.token
    gpus = found.tensor_parallel
    rows: list[tuple[str | int, ...]] = [
        ("memory, GiB", "all GPUs", "each GPU"),
        ("usable", memory.usable_bytes_per_gpu * gpus, memory.usable_bytes_per_gpu),
        ("weights", memory.weights_bytes, memory.weights_bytes_per_gpu),
        ("runtime, activations", *_each(memory.reserve_bytes_per_gpu, gpus)),
        ("room for KV", memory.kv_room_bytes, memory.kv_room_bytes_per_gpu),
    ]
    yield from _table([[_gib(cell) for cell in row] for row in rows])
    yield from _wrapped(
        f"weights: {found.parameters / 1e9:.1f} billion parameters, {memory.weights_bytes:,} bytes"
    )
    each = f" ({token.kv_bytes_per_token_per_gpu:,} on each GPU)" if gpus > 1 else ""
    yield from _wrapped(
        f"KV of one token: {token.kv_bytes_per_token:,} bytes{each}; room for "
        f"{memory.kv_room_tokens:,} tokens in blocks of {memory.block_tokens}"
    )
    yield from _wrapped(_grouped(found))


def _each(bytes_per_gpu: int, gpus: int) -> tuple[int, int]:
    return bytes_per_gpu * gpus, bytes_per_gpu


def _grouped(found: Capacity) -> str:
    token = found.token
    if token.kv_heads == token.heads:
        return f"each of the {token.heads} query heads has KV of its own: nothing is shared"
    return (
        f"grouped-query heads: {token.kv_heads} KV heads serve {token.heads} query heads; with "
        f"{token.heads} KV heads a token would keep {token.all_heads_kv_bytes_per_token:,} bytes, "
        f"{significant(token.grouped_heads_saving_ratio, 2)} times as many"
    )


def _users(found: Capacity) -> Iterator[str]:
    dtypes = list(dict.fromkeys(row.kv_cache_dtype for row in found.users))
    token_bytes = {row.kv_cache_dtype: row.kv_bytes_per_token for row in found.users}
    heads = [f"{_CACHE[one]} cache" for one in dtypes]
    rows: list[Sequence[str]] = [["users at once, each with", *heads]]
    rows += [["  bytes a token", *(f"{token_bytes[one]:,}" for one in dtypes)]]
    marked = False
    for context in dict.fromkeys(row.context_tokens for row in found.users):
        these = [row for row in found.users if row.context_tokens == context]
        mark = " *" if these[0].beyond_the_model else ""
        marked |= bool(mark)
        rows.append([f"{context:,} tokens{mark}", *(f"{row.users:,}" for row in these)])
    yield from _table(rows)
    if marked:
        yield from _wrapped(
            f"* more than the {found.longest_context_tokens:,} tokens that {found.model} was made "
            "for: what the memory would hold"
        )
    yield from _wrapped(
        "the weights stay as they are; INT8 and INT4 caches keep a 16-bit scale for each token and "
        "head, which is counted"
    )


def _layouts(found: Capacity) -> Iterator[str]:
    rows = [
        ["a user's tokens", "contiguous", "", "paged", ""],
        [f"(of {found.context_tokens:,} reserved)", "users", "waste", "users", "waste, at most"],
    ]
    rows += [
        [
            f"{one.used_tokens:,}",
            f"{one.contiguous_users:,}",
            _percent(one.contiguous_waste_share),
            f"{one.paged_users:,}",
            _percent(one.paged_waste_at_most_share),
        ]
        for one in found.layouts
    ]
    yield from _table(rows)


def _decode(found: Capacity) -> Iterator[str]:
    rows = [
        ["one decode step", "floor, ms", "", "FLOP", "bound", "predicted", "tokens/s", "fits"],
        ["users × context", "bytes", "FLOPs", "/ byte", "by", "ms", "of all", ""],
        *(_step(one) for one in found.decode),
    ]
    yield from _table(rows)
    yield from _wrapped(
        f"below {significant(found.crossover_flops_per_byte)} FLOP a byte (peak FLOP/s over peak "
        f"bytes/s of {found.gpu}) memory binds, above it arithmetic; “× 0” is the weights alone"
    )
    largest = found.decode[-1]
    if largest.binding_side == "memory":
        yield from _wrapped(
            f"every user brings KV to read as well: at {largest.context_tokens:,} tokens even "
            f"{largest.sequences:,} users do not get there"
        )
    if found.quantization == "fp8":
        yield "an FP8 operation counts as half of one: its peak is twice as high"


def _step(one: DecodeStep) -> list[str]:
    return [
        f"{one.sequences:,} × {one.context_tokens:,}",
        significant(one.bytes_floor_s * 1e3),
        significant(one.flops_floor_s * 1e3),
        significant(one.flops_per_byte),
        one.binding_side,
        significant(one.predicted_s * 1e3),
        significant(one.sequences / one.predicted_s),
        "yes" if one.fits_kv_room else "no",
    ]


def _prefill(found: Capacity) -> Iterator[str]:
    one = found.prefill
    yield from _table(
        [
            ["prefill of one prompt", "floor, ms", "", "predicted, ms", ""],
            ["", "bytes", "FLOPs", "in one step", f"chunks of {one.chunk_tokens:,}"],
            [
                f"{one.prompt_tokens:,} tokens",
                significant(one.bytes_floor_s * 1e3),
                significant(one.flops_floor_s * 1e3),
                significant(one.predicted_one_step_s * 1e3),
                significant(one.predicted_chunked_s * 1e3),
            ],
        ]
    )


def _basis(found: Capacity) -> Iterator[str]:
    alone = next(one for one in found.decode if one.context_tokens == found.context_tokens)
    yield from _wrapped(
        f"one user at {found.context_tokens:,} tokens: at most "
        f"{significant(1 / alone.floor_s)} tokens/s, predicted {significant(1 / alone.predicted_s)}"
    )
    memory = found.memory
    yield "floors are what physics allows; predictions rest on:"
    step = (
        f"activations are those of a step of {memory.reserved_step_tokens:,} tokens and "
        f"{memory.reserved_sequences:,} sequences"
    )
    for line in (*found.assumptions, step):
        yield from _wrapped(f"  {line}", indent="    ")


def _gib(cell: str | int) -> str:
    return cell if isinstance(cell, str) else f"{cell / _GIB:,.1f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns, the first to the left, the others to the right."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "   ".join(cells).rstrip()


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)

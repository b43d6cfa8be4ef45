"""The computed tables of docs/reference-numbers.md; run as a program it writes them there.

Also the page of `harness capacity` in docs/capacity.md.

Roofs and predictions come from the embedded engine's own step times; nothing is written by hand.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnosed import play
from repository import ROOT

from harness.adapters.base import BASELINE, EngineSettings, ToggleValue
from harness.adapters.embedded.adapter import deployment
from harness.adapters.embedded.capacity import Capacity, capacity_of
from harness.adapters.embedded.engine.speculative import ASSUMED_ACCEPTANCE, SpeculativeConfig
from harness.adapters.embedded.step_time.roofline import StepTime
from harness.commands.capacity_text import capacity_lines
from harness.results.analysis import summarize
from harness.results.units import significant

CAPACITY_PAGE = ROOT / "docs" / "capacity.md"
PAGE = ROOT / "docs" / "reference-numbers.md"
ENGINES = ("vLLM", "SGLang", "TensorRT-LLM")
ONE_USER_TOKENS_PER_S = (50, 55, 65)
HUNDRED_USERS_TOKENS_PER_S = (2500, 3200, 3000)
TTFT_MS = (400, 300, 350)
PROMPT_TOKENS, PROMPT_MS = 4096, 400
CONTEXT_TOKENS = 1000
DRAFT_TOKENS = 5
USERS = 100
WHOLE_RUN = {  # the load whose whole run stands beside the decode steps
    "model": "llama-3-70b",
    "hardware": "{gpu: a100-80gb, count: 4}",
    "workload": "{kind: shared-prefix, name: w, prefix_tokens: 0, suffix_tokens: 500, "
    "output_tokens: 250}",
    "load": "{concurrency: 100, requests: 800}",
}


def settings(
    gpus: int = 4,
    *,
    model: str = "llama-3-70b",
    gpu: str = "a100-80gb",
    toggles: Mapping[str, str] | None = None,
) -> EngineSettings:
    """Return the settings of one reading."""
    values = {name: ToggleValue(value) for name, value in (toggles or {}).items()}
    return EngineSettings(
        model=model,
        gpu=gpu,
        gpu_count=gpus,
        max_model_len=PROMPT_TOKENS,
        toggles={**BASELINE, "tensor_parallel": ToggleValue(str(gpus)), **values},
    )


def decode_tokens_per_s(
    asked: EngineSettings, users: int, context_tokens: int
) -> tuple[float, float]:
    """Return (at the roof, predicted) tokens a second of all `users`, each at that context."""
    timer, drafting = StepTime(deployment(asked)), asked.toggles["speculative"].kind
    queries, per_step = 1, 1.0
    if drafting != "off":
        rate = ASSUMED_ACCEPTANCE[drafting]
        queries = 1 + DRAFT_TOKENS
        per_step = SpeculativeConfig(
            method=drafting, draft_tokens=DRAFT_TOKENS, acceptance=rate
        ).mean_tokens_per_step
    read = users * context_tokens
    roof_s = timer.roof_s(users, queries, read, ())
    step_s = timer.step_s(users, queries, read + users * queries, (), users * queries)
    return users * per_step / roof_s, users * per_step / step_s


def prefill_s(asked: EngineSettings, prompt: int, chunk: int | None = None) -> tuple[float, float]:
    """Return (at the roof, predicted) seconds of a prompt; `chunk` None: in one step."""
    timer = StepTime(deployment(asked))
    parts = [
        (min(chunk or prompt, prompt - before), before)
        for before in range(0, prompt, chunk or prompt)
    ]
    predicted = [
        timer.step_s(0, 1, 0, [part], int(number == len(parts)))
        for number, part in enumerate(parts, 1)
    ]
    return timer.roof_s(0, 1, 0, [(prompt, 0)]), sum(predicted)


def longest_prompt(seconds: Callable[[int], float], limit_s: float) -> int:
    """Return the most prompt tokens, in whole tens, that take no longer than the limit."""
    low, high = 0, 2000
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if seconds(10 * middle) <= limit_s else (low, middle)
    return 10 * low


def verdict(quoted: float, roof: float, predicted: float) -> str:
    """Return whether a quoted rate is possible, and how near to the roof it lies."""
    if quoted > roof:
        return "impossible"
    return "within the prediction" if quoted <= predicted else f"{quoted / roof:.0%} of the roof"


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def one_user() -> str:
    """Return the table of one user's tokens a second."""
    readings: dict[str, dict[str, str]] = {
        "16-bit weights": {},
        "INT8 weights": {"quantization": "int8"},
        "INT4 weights": {"quantization": "int4"},
        "16-bit, EAGLE": {"speculative": "eagle"},
        "INT8, EAGLE": {"quantization": "int8", "speculative": "eagle"},
    }

    def rows() -> Iterator[Sequence[str]]:
        for name, toggles in readings.items():
            roof, predicted = decode_tokens_per_s(settings(toggles=toggles), 1, CONTEXT_TOKENS)
            quoted = [verdict(one, roof, predicted) for one in ONE_USER_TOKENS_PER_S]
            yield name, significant(roof), significant(predicted), *quoted

    heads = (f"{n}: {e}" for n, e in zip(ONE_USER_TOKENS_PER_S, ENGINES, strict=True))
    return table(("one user, tokens/s", "roof", "predicted", *heads), rows())


def whole_run(folder: Path) -> dict[str, Any]:
    """Return the metrics of a whole run of the embedded engine, prefills and all."""
    [row] = [
        one
        for one in summarize(play(folder, **WHOLE_RUN)).document()["runs"]
        if one["arm"] == "baseline"
    ]
    metrics: dict[str, Any] = row["metrics"]
    return metrics


def hundred_users(folder: Path) -> str:
    """Return the table of a hundred users' tokens a second."""
    readings: list[tuple[str, dict[str, str], int]] = [
        *((f"16-bit weights, contexts of {each:,}", {}, each) for each in (250, 500, 1000, 2000)),
        ("INT8 weights, contexts of 1,000", {"quantization": "int8"}, 1000),
        ("16-bit weights, FP8 cache, contexts of 2,000", {"kv_cache_dtype": "fp8"}, 2000),
    ]

    def rows() -> Iterator[Sequence[str]]:
        for name, toggles, each in readings:
            roof, predicted = decode_tokens_per_s(settings(toggles=toggles), USERS, each)
            quoted = [verdict(one, roof, predicted) for one in HUNDRED_USERS_TOKENS_PER_S]
            yield name, significant(roof), significant(predicted), *quoted
        metrics = whole_run(folder)
        rate = metrics["output_tokens_per_s"]
        shares = [f"{one / rate:.1f} × that" for one in HUNDRED_USERS_TOKENS_PER_S]
        yield "whole run, 500 → 250 tokens, prefills and all", "", significant(rate), *shares

    heads = (f"{n:,}: {e}" for n, e in zip(HUNDRED_USERS_TOKENS_PER_S, ENGINES, strict=True))
    return table(("100 users, tokens/s of all", "roof", "predicted", *heads), rows())


def first_token() -> str:
    """Return the table of the longest prompts that have their first token in time."""
    asked = settings()
    ways: tuple[Callable[[int], float], ...] = (
        lambda tokens: prefill_s(asked, tokens)[0],
        lambda tokens: prefill_s(asked, tokens)[1],
        lambda tokens: prefill_s(asked, tokens, 512)[1],
    )

    def rows() -> Iterator[Sequence[str]]:
        for limit_ms, engine in zip(TTFT_MS, ENGINES, strict=True):
            longest = (longest_prompt(seconds, limit_ms / 1e3) for seconds in ways)
            yield f"{limit_ms} ms: {engine}", *(f"{one:,}" for one in longest)

    head = ("TTFT of one user, longest prompt in tokens", "roof", "predicted", "chunks of 512")
    return table(head, rows())


def long_prompt() -> str:
    """Return the table of 4,096 prompt tokens on other hardware."""
    readings = [
        ("Llama-3-70B, 1 × A100-80GB", settings(1)),
        ("Llama-3-70B, 4 × A100-80GB", settings(4)),
        ("Llama-3-70B, 8 × A100-80GB", settings(8)),
        ("Llama-3-70B, 4 × H100-80GB", settings(4, gpu="h100-80gb")),
        ("Llama-3-8B, 1 × A100-80GB", settings(1, model="llama-3-8b")),
    ]

    def rows() -> Iterator[Sequence[str]]:
        for name, asked in readings:
            roof_s, predicted_s = prefill_s(asked, PROMPT_TOKENS)
            fits = "yes" if capacity_of(asked).fit.fits else "no"
            possible = verdict(1 / PROMPT_MS, 1e-3 / roof_s, 1e-3 / predicted_s)
            yield name, significant(roof_s * 1e3), significant(predicted_s * 1e3), fits, possible

    head = (f"{PROMPT_TOKENS:,} prompt tokens, ms", "roof", "predicted", "fits", f"{PROMPT_MS} ms")
    return table(head, rows())


def crossovers() -> str:
    """Return the table of operations a byte at which arithmetic binds, and of the batches there."""

    def rows() -> Iterator[Sequence[str]]:
        for gpu in ("a100-80gb", "h100-80gb", "h200"):
            found: Capacity = capacity_of(settings(gpu=gpu))
            alone = [one for one in found.decode if not one.context_tokens]
            sides = [f"{significant(one.flops_per_byte)}, {one.binding_side}" for one in alone]
            yield gpu, significant(found.crossover_flops_per_byte), *sides

    batches = (f"batch {batch:,}" for batch in (1, 32, 256, 1024))
    return table(("FLOP a byte, weights alone", "crossover", *batches), rows())


def tables(folder: Path) -> dict[str, str]:
    """Return all tables of the page by their names."""
    return {
        "one user": one_user(),
        "a hundred users": hundred_users(folder),
        "first token": first_token(),
        "long prompt": long_prompt(),
        "crossover": crossovers(),
    }


def written(page: str, computed: Mapping[str, str]) -> str:
    """Return the page with each table behind its mark, in place of what stands there."""
    for title, text in computed.items():
        mark = f"<!-- {title} -->\n\n"
        before, _, after = page.partition(mark)
        rest = re.sub(r"\A(\|.*\n)+\n", "", after)
        page = f"{before}{mark}{text}\n\n{rest}"
    return page


def capacity_page() -> str:
    """Return what `harness capacity` prints above its last paragraph, as its page shows it."""
    text = "\n".join(capacity_lines(capacity_of(settings())))
    return text[: text.index("\none user at")].strip()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        now = written(PAGE.read_text(encoding="utf-8"), tables(Path(name)))
        PAGE.write_text(now, encoding="utf-8")
    block = re.compile(r"(?<=```text\n)llama-3-70b on 4 × [^`]*(?=\n```)")
    shown = block.sub(capacity_page(), CAPACITY_PAGE.read_text(encoding="utf-8"))
    CAPACITY_PAGE.write_text(shown, encoding="utf-8")

"""The root cause of a failed start is found, not the last thing that fell over it."""

from __future__ import annotations

import pytest

from harness.adapters.process.failures import diagnose

WARNING = (
    "(APIServer pid=7) WARNING 11-30 01:02:03 [system_utils.py:255] Found ulimit of 20000. This "
    "can cause fd limit errors like `OSError: [Errno 24] Too many open files`."
)
USAGE = "usage: vllm serve [model_tag] [options]\n   [--port PORT]"
PYDANTIC = "pydantic_core.ValidationError: 1 validation error for ModelConfig"
FORBIDDEN = "pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs"
NO_ROOM = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
FALLOUT = (
    "RuntimeError: Engine core initialization failed. See root cause above. "
    "Failed core proc(s): {'EngineCore': 1}\n"
    "/lib/resource_tracker.py:254: UserWarning: There appear to be 1 leaked objects"
)


def from_worker(text: str) -> str:
    return f"(Worker pid=9) ERROR 11-30 01:02:03 [executor.py:1063] {text}"


@pytest.mark.parametrize(
    ("cause", "kind", "line"),
    [
        (
            f"{USAGE}\nvllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp7' (choose",
            "bad flag",
            "argument --kv-cache-dtype: invalid choice",
        ),
        ("vllm: error: unrecognized arguments: --bogus 1", "bad flag", "--bogus 1"),
        ("OSError: [Errno 98] Address already in use", "port taken", "Address already in use"),
        (
            from_worker("ValueError: Available memory on node 0 (7.74/9.34 GiB) on kv cache …"),
            "out of memory",
            "ValueError: Available memory on node 0 (7.74/9.34 GiB)",
        ),
        (
            from_worker("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory",
            "torch.OutOfMemoryError",
        ),
        (
            from_worker("ValueError: Free memory on device cuda:0 (3/80 GiB) on startup is less …"),
            "out of memory",
            "Free memory on device cuda:0",
        ),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form …: '/nowhere'",
            "model not found",
            "/nowhere",
        ),
        (
            from_worker("RuntimeError: Cannot find any model weights with `/models/empty`"),
            "model not found",
            "/models/empty",
        ),
        (
            from_worker("AssertionError: Not enough allowed NUMA nodes to bind threads of 2 …"),
            "not on this hardware",
            "NUMA nodes",
        ),
        (
            from_worker("ValueError: No common block size for 16 (CPU_ATTN: [MultipleOf(32)])."),
            "invalid configuration",
            "No common block size for 16",
        ),
        (
            f"{PYDANTIC}\n  Value error, User-specified max_model_len (99999) is greater than …",
            "invalid configuration",
            "max_model_len (99999)",
        ),
        (
            "Usage: trtllm-serve serve [OPTIONS] MODEL\n\nError: No such option: --bogus",
            "bad flag",
            "No such option: --bogus",
        ),
        (
            "Error: Invalid value for '--backend': 'tensorrt' is not one of 'pytorch'.",
            "bad flag",
            "'--backend'",
        ),
        (
            f"{FORBIDDEN}\nkv_cache_config.bogus\n  Extra inputs are not permitted [type=extra_…",
            "bad key",
            "TorchLlmArgs kv_cache_config.bogus Extra inputs are not permitted",
        ),
        (
            "[11/30/2026-01:02:03] [TRT-LLM] [RANK 1] [E] torch.OutOfMemoryError: CUDA out of …",
            "out of memory",
            "torch.OutOfMemoryError",
        ),
        ("ValueError: No GPU devices found on the node", "not on this hardware", "No GPU devices"),
        (
            "RuntimeError: Failed to bind socket to 127.0.0.1:1: [Errno 98] Address already in use",
            "port taken",
            "Failed to bind socket",
        ),
        (
            "ERROR:    [Errno 98] error while attempting to bind …: address already in use",
            "port taken",
            "attempting to bind",
        ),
        (
            "ValueError: Failed to infer …: no config.json exists in /models/empty",
            "model not found",
            "/models/empty",
        ),
        (
            "ValueError: CPU FP8 KV cache requires Intel AMX support.",
            "not on this hardware",
            "Intel AMX",
        ),
        (
            f"[2026-11-30 01:02:03 TP1] {NO_ROOM}",
            "out of memory",
            "RuntimeError: Not enough memory",
        ),
        (
            "ValueError: context_length (99999) is greater than the derived context_length (4096).",
            "invalid configuration",
            "context_length (99999)",
        ),
        (from_worker("KeyError: 'lm_head.weight'"), "worker died", "KeyError: 'lm_head.weight'"),
    ],
)
def test_each_kind_of_failure_is_told_with_its_line(cause: str, kind: str, line: str) -> None:
    """Between a warning that looks like an error and what follows from the cause, it is found."""
    failure = diagnose(1, f"{WARNING}\n{cause}\n{FALLOUT}")

    assert failure.kind == kind
    assert failure.line is not None
    assert line in failure.line
    assert "Worker pid" not in failure.line
    assert "TRT-LLM" not in failure.line
    assert failure.advice


def test_a_known_cause_wins_over_an_unknown_one_before_it() -> None:
    """What a library says first may be noise; a cause with a name is the better answer."""
    log = f"{from_worker('ImportError: no fancy kernels')}\n{from_worker('MemoryError: ')}"

    assert diagnose(1, log).kind == "out of memory"


def test_an_engine_that_was_killed_says_so_without_any_word_of_its_own() -> None:
    """The system's own killer leaves no line in an engine's log."""
    failure = diagnose(-9, f"{WARNING}\nINFO loading weights")

    assert (failure.kind, failure.line) == ("worker died", None)
    assert "short of memory" in failure.advice


@pytest.mark.parametrize(
    ("stamp", "word"),
    [
        (
            "(EngineCore pid=7) ERROR 11-30 01:02:03 [a.py:1] ",
            "Worker proc W-0 died unexpectedly",
        ),
        ("[2026-11-30 01:02:03] ", "Subprocess scheduler_0 (pid=9) crashed with exit code -9. …"),
    ],
)
def test_a_worker_that_was_killed_is_told_by_its_parent(stamp: str, word: str) -> None:
    """The engine's core notes the death of a worker that could not say anything."""
    failure = diagnose(1, f"{stamp}{word}")

    assert failure.kind == "worker died"
    assert failure.line == word


def test_a_cache_without_room_is_told_what_gives_it_some() -> None:
    """Of the two ways to be out of memory this one wants a larger share, not a smaller."""
    too_little = diagnose(1, NO_ROOM)
    too_much = diagnose(1, "torch.OutOfMemoryError: CUDA out of memory")

    assert too_little.kind == too_much.kind == "out of memory"
    assert "raise memory_utilization" in too_little.advice
    assert "lower max_model_len" in too_much.advice


@pytest.mark.parametrize(("log", "line"), [("", None), ("INFO a\n\nINFO b\n", "INFO b")])
def test_an_unknown_end_shows_the_last_line(log: str, line: str | None) -> None:
    """Nothing is made up: without a cause there is the last line, or none."""
    failure = diagnose(1, log)

    assert (failure.kind, failure.line) == ("unknown", line)


def test_a_very_long_line_is_cut() -> None:
    """A choice list of thousands of characters does not fill the screen."""
    failure = diagnose(2, f"vllm: error: argument --x: invalid choice: {'y' * 9000}")

    assert failure.line is not None
    assert len(failure.line) <= 400

"""The root cause of a failed start is found, not the last thing that fell over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.adapters.process.failures import diagnose
from harness.adapters.process.oom_kills import oom_kills

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
    assert "OOM killer, short of memory" in failure.advice


@pytest.mark.parametrize(
    ("code", "log", "oom_kills", "kind", "advice"),
    [
        (137, "INFO loading weights", 1, "out of memory", "OOM killer ended it"),
        (-9, "INFO loading weights", 2, "out of memory", "OOM killer ended it"),
        (-9, "RuntimeError: cancelled", 1, "out of memory", "OOM killer ended it"),
        (1, "Worker proc W-0 died unexpectedly", 1, "out of memory", "OOM killer ended it"),
        (137, "INFO loading weights", None, "worker died", "OOM killer"),
        (137, "INFO loading weights", 0, "worker died", "OOM killer ended no process"),
        (1, "Worker proc W-0 died unexpectedly", 0, "worker died", "whole log"),
        (-11, "INFO loading weights", 1, "worker died", "a crash of the program"),
        (1, "KeyError: 'x'", 3, "unknown", "whole log"),
    ],
)
def test_the_counter_of_the_oom_killer_decides_who_sent_sigkill(
    code: int, log: str, oom_kills: int | None, kind: str, advice: str
) -> None:
    """137 is SIGKILL as a shell or a container reports it; other ends are no OOM killer's."""
    failure = diagnose(code, log, oom_kills=oom_kills)

    assert failure.kind == kind
    assert advice in failure.advice


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({"cg/pod/memory.events": "oom 3\noom_kill 2\noom_group_kill 0\n"}, 2),
        ({"cg/memory.events": "oom_kill 4\n"}, 4),
        ({"cg/memory/box/memory.oom_control": "under_oom 0\noom_kill 5\n"}, 5),
        ({"proc/vmstat": "pgpgin 1\noom_kill 7\n"}, 7),
        ({"cg/pod/memory.events": "oom_kill 2\n", "proc/vmstat": "oom_kill 7\n"}, 9),
        ({"cg/pod/memory.events": "low 0\n"}, None),
    ],
)
def test_the_oom_kills_of_the_group_and_of_the_machine_are_read(
    tmp_path: Path, files: dict[str, str], count: int | None
) -> None:
    """Either version of cgroups, a container's own root, or the machine's count."""
    groups = "0::/pod\n4:memory:/box\n"
    for name, text in {**files, "proc/self/cgroup": groups}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert oom_kills(tmp_path / "proc", tmp_path / "cg") == count
    assert oom_kills(tmp_path / "no", tmp_path / "no") is None


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


@pytest.mark.parametrize(
    ("cause", "advice", "never"),
    [
        (NO_ROOM, "raise memory_utilization, lower max_model_len", "lower memory_utilization"),
        (
            from_worker(
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine."
            ),
            "raise memory_utilization",
            "lower memory_utilization",
        ),
        (
            from_worker(
                "ValueError: To serve at least one request with the model's max seq len (131072), "
                "(16.0 GiB KV cache is needed, which is larger than the available KV cache memory "
                "(7.5 GiB). Based on the available memory, the estimated maximum model length is "
                "61440. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
            ),
            "lower max_model_len to 61440 or less",
            "lower memory_utilization",
        ),
        (
            (
                "ValueError: Loaded weights leave no GPU memory for the KV cache under "
                "--mem-fraction-static=0.4. Raise --mem-fraction-static above 0.612"
            ),
            "raise memory_utilization",
            "lower memory_utilization",
        ),
        (
            (
                "Exception: Capture cuda graph failed: CUDA out of memory. Possible solutions: "
                "1. set --mem-fraction-static to a smaller value"
            ),
            "lower memory_utilization, max_num_seqs",
            "raise memory_utilization",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "lower memory_utilization, max_num_seqs",
            "raise memory_utilization",
        ),
        (
            (
                "ValueError: Free memory on device cuda:0 (3/80 GiB) on startup is less than "
                "desired GPU memory utilization (0.9, 72 GiB). Decrease GPU memory utilization"
            ),
            "end the other programs",
            "raise memory_utilization",
        ),
        (
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: not enough "
                "memory: you tried to allocate 8589934592 bytes"
            ),
            "the memory of the host is full",
            "max_model_len",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "the memory of the host", "max_model_len"),
    ],
)
def test_the_advice_on_too_little_memory_follows_the_message(
    cause: str, advice: str, never: str
) -> None:
    """A cache without capacity wants a larger share, a full device a smaller one."""
    failure = diagnose(1, cause)

    assert failure.kind == "out of memory"
    assert advice in failure.advice
    assert never not in failure.advice


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

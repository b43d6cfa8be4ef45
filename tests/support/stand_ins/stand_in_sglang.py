"""A stand-in for SGLang: its command line, endpoints and counters, no model, and faults on demand.

    stand_in_sglang.py FAULTS --model-path MODEL --flags…

FAULTS are words joined by commas, `-` for none:
  version=V        what it says that it is          old: has /get_server_info only
  start=S          listens after S seconds          never-healthy
  dies-of=KIND     oom, pool, model, amx, worker: writes such a log and ends while it starts
  crashes-at=N     ends in the N-th completion      ignores-sigterm, orphan (a worker that hides)
  deaf-to=TOGGLE   cache, chunks, drafts: the flag is taken, and the opposite is done
  lies             it tells the arguments that it was given, whatever it does
  busy=N           the first N flushes find something in flight
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stand_in_vllm import LIFE_S, SET_NAME, Engine, Handler, Request, hide_a_worker, say

STAMP = "[2026-11-30 01:02:03 TP0]"
DRAFTS = 8  # nodes of a tree, where no flag says
DEATHS = {
    "oom": f"{STAMP} Scheduler hit an exception: Traceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "pool": "ValueError: Not enough memory. Please try to increase --mem-fraction-static.",
    "model": "OSError: nowhere is not a local folder and is not a valid model identifier",
    "amx": "ValueError: CPU FP8 KV cache requires Intel AMX support.",
    "worker": f"{STAMP} Subprocess scheduler_0 (pid=9) crashed with exit code -9. Triggering …",
}


def parse(words: list[str]) -> argparse.Namespace:
    """Return the recorded options; unlike SGLang's own parser it takes no beginnings of flags."""
    table = json.loads((Path(__file__).parent / "sglang_flags.json").read_text(encoding="utf-8"))
    made = argparse.ArgumentParser("sglang serve", add_help=False, allow_abbrev=False)
    for flag in table["flags"]:
        kinds: dict[str, dict[str, Any]] = {
            "switch": {"action": argparse.BooleanOptionalAction},
            "flag": {"action": "store_true"},
            "value": {"choices": flag.get("choices")},
            "many": {"nargs": "+"},
            "optional": {"nargs": "?"},
        }
        made.add_argument(*flag["names"], **kinds[flag["kind"]])
    return made.parse_args(words)


class Scheduler(Engine):
    """The other stand-in's steps, counted as SGLang counts them."""

    def __init__(self, options: argparse.Namespace, faults: dict[str, str]) -> None:
        deaf = faults.get("deaf-to")
        self.chunk_tokens = int(options.chunked_prefill_size)
        if deaf == "chunks":
            self.chunk_tokens = -1 if self.chunk_tokens > 0 else 512
        speculates = (options.speculative_algorithm is not None) != (deaf == "drafts")
        self.says = dict(vars(options))
        self.decode_passes = self.parts = 0
        as_vllm = argparse.Namespace(
            enable_prefix_caching=options.disable_radix_cache == (deaf == "cache"),
            block_size=options.page_size or 1,
            max_num_seqs=options.max_running_requests,
            speculative_config="{}" if speculates else "null",
        )
        super().__init__(as_vllm, {})
        if "lies" not in faults:
            self.says |= {
                "disable_radix_cache": not self.caches,
                "chunked_prefill_size": self.chunk_tokens,
                "speculative_algorithm": "NGRAM" if speculates else None,
            }

    def step(self) -> None:
        later = self.totals["later"]
        super().step()
        self.decode_passes += self.totals["later"] > later

    def prefill(self, request: Request) -> int:
        computed = super().prefill(request)
        if self.chunk_tokens > 0:
            self.parts += -(-computed // self.chunk_tokens) - 1
        return computed


def info_of(engine: Scheduler, faults: dict[str, str]) -> dict[str, Any]:
    """Return what `/server_info` tells."""
    says = engine.says
    graphs = says["cuda_graph_backend_decode"] or "full"
    draft_tokens = says["speculative_num_draft_tokens"]
    resolved = {
        **says,
        "page_size": engine.block_tokens,
        "tp_size": int(says["tp_size"]),
        "cuda_graph_config": {"decode": {"backend": graphs}},
        "chunked_prefill_size": int(says["chunked_prefill_size"]),
        "speculative_num_draft_tokens": int(draft_tokens or DRAFTS),
        "attention_backend": says["attention_backend"] or "fa3",
    }
    return {
        **resolved,
        "max_total_num_tokens": 128_000,
        "version": faults.get("version", "0.5.23"),
        "engine_kind": "stand-in",
        "internal_states": [
            {**resolved, "effective_max_running_requests_per_dp": engine.most_running}
        ],
    }


def metrics_of(engine: Scheduler, *, counts_verifies: bool) -> Iterator[str]:
    """Yield the lines of `/metrics`: a series comes up with its first count, save those of TP 1."""
    totals, rank = engine.totals, 'tp_rank="0",pp_rank="0"'
    requests = totals["first"]
    stages = "per_stage_req_latency_seconds_count"
    graphs = engine.says["cuda_graph_backend_decode"] != "disabled"
    mode = "decode_cuda_graph" if graphs else "decode_none"
    counts = {
        'prompt_tokens_total{is_streaming="false"}': totals["prompt"] - totals["prompt"] // 2,
        'prompt_tokens_total{is_streaming="true"}': totals["prompt"] // 2,
        'generation_tokens_total{is_streaming="false"}': totals["output"],
        'num_requests_total{is_streaming="false"}': requests,
        'cached_tokens_total{cache_source="device"}': totals["hits"],
        f'cuda_graph_passes_total{{mode="{mode}",{rank}}}': engine.decode_passes,
        f'cuda_graph_passes_total{{mode="{mode}",tp_rank="1"}}': engine.decode_passes,
        f'cuda_graph_passes_total{{mode="prefill_none",{rank}}}': requests,
        f'realtime_tokens_total{{mode="decode",{rank}}}': totals["output"] - requests,
        f'{stages}{{stage="prefill_forward",{rank}}}': requests,
        f'{stages}{{stage="chunked_prefill",{rank}}}': engine.parts,
        f'{stages}{{stage="chunked_prefill",tp_rank="1"}}': engine.parts,
        "spec_verify_calls_total{}": totals["drafts"] if counts_verifies else 0,
    }
    for name, value in counts.items():
        if value:
            yield f"sglang:{name} {value}.0"


class Server(ThreadingHTTPServer):
    """The stand-in's HTTP server and what its handlers share."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, options: argparse.Namespace, faults: dict[str, str]) -> None:
        self.options, self.faults = options, faults
        self.engine = Scheduler(options, faults)
        self.model = options.model_path
        self.completions = self.flushes = 0
        super().__init__(("127.0.0.1", int(options.port)), Routes)


class Routes(Handler):
    """SGLang's routes, as far as a harness asks for them."""

    server: Server  # type: ignore[assignment]

    def do_GET(self) -> None:  # noqa: N802  its name in the base
        faults, engine = self.server.faults, self.server.engine
        if self.path == "/health":
            self.answer(503 if "never-healthy" in faults else 200, "")
        elif self.path == "/v1/models":
            self.answer(200, {"data": [{"id": self.server.model}]})
        elif self.path == "/metrics":
            newest = faults.get("version", "0.5.23") >= "0.5.16"
            self.answer(200, "\n".join(metrics_of(engine, counts_verifies=newest)) + "\n")
        elif self.path == ("/get_server_info" if "old" in faults else "/server_info"):
            self.answer(200, info_of(engine, faults))
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:  # noqa: N802
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.partition("?")[0] == "/flush_cache":
            self.server.flushes += 1
            busy = self.server.flushes <= int(self.server.faults.get("busy", 0))
            done = not busy and self.server.engine.reset()
            self.answer(200 if done else 400, "Cache flushed." if done else "Flush cache failed.")
        elif self.path == "/v1/completions":
            self.complete(json.loads(body))
        else:
            self.answer(404, {"detail": "Not Found"})


def main(faults_word: str, *words: str) -> None:
    """Serve until stopped, or fail as `faults_word` says."""
    faults = {name: value for name, _, value in (f.partition("=") for f in faults_word.split(","))}
    options = parse(list(words))
    threading.Timer(LIFE_S, lambda: os._exit(3)).start()
    ctypes.CDLL(None).prctl(SET_NAME, b"sglang::server", 0, 0, 0)
    if "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "orphan" in faults:
        hide_a_worker(options.model_path)
    if "dies-of" in faults:
        say(DEATHS[faults["dies-of"]])
        os.kill(os.getpid(), signal.SIGKILL)  # SGLang ends itself and all its children so
    time.sleep(float(faults.get("start", 0)))
    Server(options, faults).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

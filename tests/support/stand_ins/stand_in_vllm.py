"""A stand-in for vLLM: its command line, endpoints and counters, no model, and faults on demand.

    stand_in_vllm.py FAULTS serve MODEL --flags…

FAULTS are words joined by commas, `-` for none:
  start=S          listens after S seconds          never-listens, never-healthy, never-generates
  dies-of=KIND     oom, model, port, worker, nothing: writes such a log and ends while it starts
  cold=S           the first six completions begin S seconds late, as where kernels compile
  crashes-at=N, freezes-at=N   ends or stops in the N-th completion
  ignores-sigterm, orphan (a worker that hides)
  deaf-to-on, deaf-to-off     --(no-)enable-prefix-caching is taken and does nothing
  lies             the configuration it tells is the one asked for, whatever it does
  serves=NAME      is another model's server        no-dev, reset-fails, reset-is-silent
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VERSION = "0.32.0"
LIFE_S = 120.0  # a test that failed leaves nothing behind for longer
STEP_S = 0.002
COLD_ANSWERS = 6
BLOCK_TOKENS = 128
VOCABULARY = 4096
SET_NAME = 15  # of prctl(2)
EDGES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
DEATHS = {
    "oom": "(EngineCore pid=7) ERROR 11-30 01:02:03 [core.py:1] torch.OutOfMemoryError: CUDA out of"
    " memory. Tried to allocate 2.00 GiB.\nRuntimeError: Engine core initialization failed.",
    "model": "OSError: nowhere is not a local folder and is not a valid model identifier",
    "port": "OSError: [Errno 98] Address already in use",
    "worker": "(EngineCore pid=7) ERROR 11-30 01:02:03 [executor.py:1] Worker proc VllmWorker-0 "
    "died unexpectedly (exit code: -9), shutting down executor.",
    "nothing": "INFO: thinking",
}


def parser() -> argparse.ArgumentParser:
    """Return a parser of the recorded options; unlike vLLM's it takes no abbreviations."""
    table = json.loads((Path(__file__).parent / "vllm_flags.json").read_text(encoding="utf-8"))
    made = argparse.ArgumentParser("vllm serve", add_help=False, allow_abbrev=False)
    made.add_argument("model_tag")
    for flag in table["flags"]:
        kinds: dict[str, dict[str, Any]] = {
            "switch": {"action": argparse.BooleanOptionalAction},
            "flag": {"action": "store_true"},
            "value": {"choices": flag.get("choices")},
            "many": {"nargs": "+"},
            "optional": {"nargs": "?"},
        }
        made.add_argument(*flag["names"], **kinds[flag["kind"]])
    return made


def parse(words: list[str]) -> argparse.Namespace:
    """Return the options of `serve MODEL --flags…`; dotted ones are set in their mapping."""
    dotted = [word for word in words if word.startswith("-") and "." in word.partition("=")[0]]
    options = parser().parse_args([word for word in words[1:] if word not in dotted])
    options.compilation_config = json.loads(options.compilation_config or "{}")
    for word in dotted:
        name, _, value = word.partition("=")
        head, _, key = name.partition(".")
        if head not in ("-cc", "--compilation-config"):
            parser().error(f"unrecognized arguments: {word}")
        options.compilation_config[key] = value
    return options


class Request:
    """One completion on its way."""

    def __init__(self, prompt: list[int], wanted: int) -> None:
        self.prompt, self.wanted = prompt, wanted
        self.cached = 0
        self.made = 0
        self.events: queue.Queue[int] = queue.Queue()  # tokens of each event


class Engine:
    """Steps through its running requests; a prompt takes one step, a token another."""

    def __init__(self, options: argparse.Namespace, faults: dict[str, str]) -> None:
        asked = bool(options.enable_prefix_caching)
        self.caches = (asked and "deaf-to-on" not in faults) or (
            not asked and "deaf-to-off" in faults
        )
        self.says_caches = asked if "lies" in faults else self.caches
        self.block_tokens = int(options.block_size or BLOCK_TOKENS)
        self.most_running = int(options.max_num_seqs or 128)
        self.draft = json.loads(options.speculative_config or "null")
        self.lock = threading.Condition()
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.known: set[int] = set()
        self.totals = dict.fromkeys(
            ("queries", "hits", "prompt", "output", "first", "later", "drafts", "accepted"), 0
        )
        self.step_sizes: list[int] = []
        threading.Thread(target=self.step_on, daemon=True).start()

    def ask(self, prompt: list[int], wanted: int) -> Request:
        request = Request(prompt, wanted)
        with self.lock:
            self.waiting.append(request)
            self.lock.notify()
        return request

    def reset(self) -> bool:
        with self.lock:
            if self.running or self.waiting:
                return False
            self.known.clear()
            return True

    def step_on(self) -> None:
        while True:
            with self.lock:
                self.lock.wait_for(lambda: self.waiting or self.running)
            time.sleep(STEP_S)
            with self.lock:
                self.step()

    def step(self) -> None:
        tokens = 0
        while self.waiting and len(self.running) < self.most_running:
            request = self.waiting.pop(0)
            tokens += self.prefill(request)
            self.running.append(request)
        for request in list(self.running):
            most = 1 if self.draft is None or not request.made else 3
            brought = min(most, request.wanted - request.made)
            self.totals["drafts"] += most > 1
            self.totals["accepted"] += brought - 1
            self.totals["output"] += brought
            self.totals["later" if request.made else "first"] += 1
            request.made += brought
            tokens += brought
            if request.made == request.wanted:
                self.running.remove(request)
            request.events.put(brought)
        self.step_sizes.append(tokens)

    def prefill(self, request: Request) -> int:
        """Look the prompt up, store its blocks, and return the tokens that had to be computed."""
        ends = range(self.block_tokens, len(request.prompt), self.block_tokens)
        blocks = [hash(tuple(request.prompt[:end])) for end in ends]
        if self.caches:
            known = [block in self.known for block in blocks]
            found = known.index(False) if False in known else len(known)
            request.cached = found * self.block_tokens
            self.known.update(blocks)
            self.totals["queries"] += len(request.prompt)
        self.totals["hits"] += request.cached
        self.totals["prompt"] += len(request.prompt)
        return len(request.prompt) - request.cached


def config_of(options: argparse.Namespace, engine: Engine) -> dict[str, Any]:
    """Return the resolved configuration, of which `/server_info` tells."""
    return {
        "model_config": {"dtype": f"torch.{options.dtype}", "quantization": options.quantization},
        "cache_config": {
            "block_size": engine.block_tokens,
            "cache_dtype": options.kv_cache_dtype,
            "enable_prefix_caching": engine.says_caches,
            "num_gpu_blocks": 1000,
        },
        "parallel_config": {
            "tensor_parallel_size": int(options.tensor_parallel_size or 1),
            "pipeline_parallel_size": int(options.pipeline_parallel_size or 1),
            "data_parallel_size": int(options.data_parallel_size or 1),
            "enable_expert_parallel": bool(options.enable_expert_parallel),
        },
        "scheduler_config": {
            "max_num_batched_tokens": int(options.max_num_batched_tokens),
            "max_num_seqs": engine.most_running,
            "enable_chunked_prefill": bool(options.enable_chunked_prefill),
            "async_scheduling": bool(options.async_scheduling),
        },
        "attention_config": {"backend": options.attention_backend},
        "compilation_config": {
            "cudagraph_mode": {"NONE": 0}.get(options.compilation_config["cudagraph_mode"], [2, 1])
        },
        "speculative_config": engine.draft,
    }


def metrics_of(engine: Engine) -> Iterator[str]:
    """Yield the lines of `/metrics`, of an engine of two halves: sums are what counts."""
    totals, sizes = engine.totals, engine.step_sizes
    names = {
        "prefix_cache_queries_total": totals["queries"],
        "prefix_cache_hits_total": totals["hits"],
        "prompt_tokens_total": totals["prompt"],
        "prompt_tokens_cached_total": totals["hits"],
        "generation_tokens_total": totals["output"],
        "num_preemptions_total": 0,
        "time_to_first_token_seconds_count": totals["first"],
        "inter_token_latency_seconds_count": totals["later"],
        "iteration_tokens_total_count": len(sizes),
        "iteration_tokens_total_sum": sum(sizes),
    }
    if engine.draft:
        names["spec_decode_num_drafts_total"] = totals["drafts"]
        names["spec_decode_num_draft_tokens_total"] = totals["drafts"] * 4
        names["spec_decode_num_accepted_tokens_total"] = totals["accepted"]
    for name, value in names.items():
        yield f"# TYPE vllm:{name} counter"
        yield f'vllm:{name}{{engine="0",model_name="m"}} {value - value // 2}.0'
        yield f'vllm:{name}{{engine="1",model_name="m"}} {value // 2}.0'
    for edge in (*EDGES, float("inf")):
        below = sum(size <= edge for size in sizes)
        yield f'vllm:iteration_tokens_total_bucket{{le="{edge}"}} {below}.0'.replace("inf", "+Inf")
    caches = f'enable_prefix_caching="{engine.says_caches}",block_size="{engine.block_tokens}"'
    yield f"vllm:cache_config_info{{{caches}}} 1.0"


class Server(ThreadingHTTPServer):
    """The stand-in's HTTP server and what its handlers share."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, options: argparse.Namespace, faults: dict[str, str]) -> None:
        self.options, self.faults = options, faults
        self.engine = Engine(options, faults)
        self.model = faults.get("serves", options.model_tag)
        self.completions = 0
        super().__init__(("127.0.0.1", int(options.port)), Handler)


class Handler(BaseHTTPRequestHandler):
    """vLLM's routes, as far as a harness asks for them."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the base
        """Write no line for each request."""

    def do_GET(self) -> None:
        faults, engine = self.server.faults, self.server.engine
        path = self.path.partition("?")[0]
        if path == "/health":
            self.answer(503 if "never-healthy" in faults else 200, "")
        elif path == "/version":
            self.answer(200, {"version": VERSION, "engine_kind": "stand-in"})
        elif path == "/v1/models":
            self.answer(200, {"data": [{"id": self.server.model, "max_model_len": 4096}]})
        elif path == "/metrics":
            self.answer(200, "\n".join(metrics_of(engine)) + "\n")
        elif path == "/server_info" and "no-dev" not in faults:
            self.answer(200, {"vllm_config": config_of(self.server.options, engine)})
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        faults = self.server.faults
        if self.path == "/reset_prefix_cache" and "no-dev" not in faults:
            done = "reset-fails" not in faults and self.server.engine.reset()
            self.answer(200, "" if "reset-is-silent" in faults else {"success": done})
            if "reset-is-silent" in faults:
                say("Successfully reset prefix cache" if done else "Failed to reset prefix cache")
        elif self.path == "/v1/completions":
            self.complete(json.loads(body))
        else:
            self.answer(404, {"detail": "Not Found"})

    def complete(self, asked: dict[str, Any]) -> None:
        faults = self.server.faults
        self.server.completions += 1
        if asked["model"] != self.server.model:
            self.answer(404, {"error": {"message": f"no model {asked['model']}", "code": 404}})
        elif "never-generates" in faults:
            self.answer(500, {"error": {"message": "the engine is stuck", "code": 500}})
        else:
            if self.server.completions >= int(faults.get("crashes-at", 10**9)):
                say("(EngineCore pid=7) ERROR 11-30 01:02:03 [core.py:1] ValueError: lost device")
                os._exit(139)
            if self.server.completions >= int(faults.get("freezes-at", 10**9)):
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.server.completions <= COLD_ANSWERS:
                time.sleep(float(faults.get("cold", 0)))
            prompt = asked["prompt"]
            ids = prompt if isinstance(prompt, list) else list(prompt.encode())
            request = self.server.engine.ask(ids, int(asked.get("max_tokens") or 16))
            self.stream(request, asked) if asked.get("stream") else self.whole(request)

    def whole(self, request: Request) -> None:
        text = "".join("t" * n for n in events(request))
        choice = {"index": 0, "text": text, "finish_reason": "length"}
        self.answer(200, {"choices": [choice], "usage": usage(request, request.wanted)})

    def stream(self, request: Request, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        wishes, made = asked.get("stream_options") or {}, 0
        for brought in events(request):
            made += brought
            end = "length" if made == request.wanted else None
            event: dict[str, Any] = {
                "choices": [{"index": 0, "text": "t" * brought, "finish_reason": end}]
            }
            if wishes.get("continuous_usage_stats"):
                event["usage"] = usage(request, made)
            self.chunk(f"data: {json.dumps(event)}\n\n")
        if wishes.get("include_usage"):
            last = {"choices": [], "usage": usage(request, made)}
            self.chunk(f"data: {json.dumps(last)}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def answer(self, status: int, body: object) -> None:
        text = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def events(request: Request) -> Iterator[int]:
    """Yield the tokens of each event until all that was wanted has come."""
    made = 0
    while made < request.wanted:
        brought = request.events.get()
        made += brought
        yield brought


def usage(request: Request, made: int) -> dict[str, Any]:
    return {
        "prompt_tokens": len(request.prompt),
        "completion_tokens": made,
        "prompt_tokens_details": {"cached_tokens": request.cached},
    }


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the log of an engine is what it prints


def hide_a_worker(name: str) -> None:
    """Leave a worker that has no parent, a session and a name of its own, and ignores SIGTERM."""
    life = (
        "import ctypes, os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.fork(): os._exit(0)\n"
        f"ctypes.CDLL(None).prctl({SET_NAME}, b'VLLM::Worker', 0, 0, 0)\n"
        f"time.sleep({LIFE_S})"
    )
    subprocess.Popen([sys.executable, "-S", "-c", life, name], start_new_session=True).wait()


def main(faults_word: str, *words: str) -> None:
    """Serve until stopped, or fail as `faults_word` says."""
    faults = {name: value for name, _, value in (f.partition("=") for f in faults_word.split(","))}
    options = parse(list(words))
    threading.Timer(LIFE_S, lambda: os._exit(3)).start()
    ctypes.CDLL(None).prctl(SET_NAME, b"VLLM::API", 0, 0, 0)
    if "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if "orphan" in faults:
        hide_a_worker(options.model_tag)
    say(f"non-default args: {vars(options)['model_tag']}")
    if "dies-of" in faults:
        say(DEATHS[faults["dies-of"]])
        os._exit(1)
    time.sleep(LIFE_S if "never-listens" in faults else float(faults.get("start", 0)))
    Server(options, faults).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])

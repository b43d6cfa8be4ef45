"""A stand-in for TensorRT-LLM: its command line, options file, endpoints and quirks, and faults.

    stand_in_trtllm.py FAULTS serve MODEL --flags…

Behind it runs the embedded engine, in real time. It says of itself that it is a stand-in. FAULTS
are words joined by commas, `-` for none:
  version=V        what it is a version of, 1.3.0rc3 where not said
  patience=S       how long /metrics waits where there is nothing to tell, 2 where not said
  start=S          listens after S seconds          never-listens, never-healthy
  dies-of=KIND     oom: writes such a log and ends while it starts
  crashes-at=N     ends in the N-th completion      ignores-sigterm, orphan (a worker that hides)
  deaf-to-on, deaf-to-off     enable_block_reuse is taken and does nothing
  lies             it logs the arguments that it was given, whatever it does
  loses            every tenth to thirtieth iteration is never told
  mute             it logs no arguments
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from aiohttp import web
from stand_in_vllm import hide_a_worker
from trtllm_engine import CountingCore, embedded_settings
from trtllm_strict import (
    RefusedError,
    argument_line,
    check_options,
    family_of,
    parse_flags,
    read_options,
    resolved,
)

from harness.adapters.embedded.engine.sequence import Sequence
from harness.adapters.embedded.server.http_api import Api, _EventStream, _WholeBody
from harness.adapters.embedded.server.openai_requests import ServedModel, ServedRequest, parse
from harness.adapters.embedded.server.openai_responses import DONE, CompletionBody, event
from harness.adapters.embedded.server.prometheus import MetricsPage
from harness.adapters.embedded.server.real_time import RealTimeEngine
from harness.adapters.embedded.server.request_error import RequestError

LIFE_S = 120.0  # a test that failed leaves nothing behind for longer
VOCABULARY = 128_256  # the embedded engine answers with ids of any of these
DEATHS = {
    "oom": "[11/30/2026-01:02:03] [TRT-LLM] [E] Failed to initialize executor on rank 0\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    "RuntimeError: Executor worker returned error",
}
COMMON_FIELDS = {
    *("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "stream"),
    *("stream_options", "n", "best_of", "logprobs", "user", "ignore_eos", "min_tokens"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "stop_token_ids"),
    *("skip_special_tokens", "truncate_prompt_tokens", "add_special_tokens", "response_format"),
}
FIELDS = {
    "/v1/completions": COMMON_FIELDS | {"prompt", "echo", "suffix", "detokenize"},
    "/v1/chat/completions": COMMON_FIELDS
    | {
        "messages",
        "max_completion_tokens",
        "tools",
        "tool_choice",
        "cache_salt",
        "prompt_token_ids",
    },
}


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  the log of an engine is what it prints


def log(line: str) -> None:
    say(f"[11/30/2026-01:02:03] [TRT-LLM] [I] {line}")


class TrtAnswer(CompletionBody):
    """Answers whose last event calls itself a chat's, as TensorRT-LLM's does."""

    def _ending(self, sequence: Sequence) -> bytes:
        if not self._request.include_usage:
            return DONE
        last = {**self._head, "object": "chat.completion.chunk", "choices": []}
        return event({**last, "usage": self._usage(sequence)}) + DONE


class IdsAnswer(TrtAnswer):
    """What `detokenize: false` gives: ids where a text would stand."""

    def events(self, sequence: Sequence, sent_tokens: int) -> bytes:
        ids = sequence.output_ids[sent_tokens : sequence.generated_tokens].tolist()
        choice = f'"text":"","token_ids":{ids}'.encode()
        return re.sub(rb'"text":"[^"]*"', choice, super().events(sequence, sent_tokens), count=1)


class TrtApi(Api):
    """TensorRT-LLM's routes over the embedded engine."""

    def __init__(
        self,
        core: CountingCore,
        model: ServedModel,
        arguments: dict[str, Any],
        faults: dict[str, str],
    ) -> None:
        engine = RealTimeEngine(core)
        super().__init__(engine, model, MetricsPage(engine, model.name, {}), faults["version"])
        self.engine, self._core, self._arguments, self._faults = engine, core, arguments, faults
        self._family = family_of(faults["version"])
        self._done_at: int | None = None  # requests that had come when a read timed out
        self._finished: list[dict[str, Any]] = []
        self._totals = {"prompt": 0, "cached": 0, "generation": 0}
        self._completions = 0

    def application(self, most_body_bytes: int) -> web.Application:
        application = super().application(most_body_bytes)
        routes = [web.get("/perf_metrics", self.perf_metrics)]
        if self._arguments["return_perf_metrics"]:
            routes.append(web.get("/prometheus/metrics", self.prometheus))
        application.add_routes(routes)
        return application

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if "never-healthy" in self._faults else 200)

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self._version, "engine_kind": "stand-in"})

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._model.name}]})

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        raise RequestError("Not Found", kind="NotFoundError", status=404)

    async def metrics(self, _: web.Request) -> web.Response:
        if not self._arguments["enable_iter_perf_stats"] or not self._core.submitted:
            return web.json_response([])
        old = self._family == "1.1"
        if old and self._done_at == self._core.submitted:
            return web.json_response([])
        told = await self._take()
        if old:  # as long as there is always one more
            while more := await self._take():
                told += more
            self._done_at = self._core.submitted
        elif told:
            await asyncio.sleep(self._patience_s)
        return web.json_response(told)

    async def perf_metrics(self, _: web.Request) -> web.Response:
        finished, self._finished = self._finished, []
        return web.json_response(finished)

    async def prometheus(self, _: web.Request) -> web.Response:
        prefix = "" if self._family == "1.1" else "trtllm_"
        labels = 'engine_type="undefined",model_name="undefined"'
        lines = [f"{prefix}request_success_total{{{labels}}} {self._completions}.0"]
        if self._family == "main":
            totals, kv = self._totals, self._arguments["kv_cache_config"]
            lines += [
                f"trtllm_{name}_tokens_total {totals[name]}.0" for name in ("prompt", "generation")
            ]
            if totals["cached"]:
                lines.append(f"trtllm_prompt_cached_tokens_total {totals['cached']}.0")
            reuse = str(kv["enable_block_reuse"]).lower()
            lines.append(f'trtllm_kv_cache_config_info{{enable_block_reuse="{reuse}"}} 1.0')
        return web.Response(text="\n".join(lines) + "\n")

    @property
    def _patience_s(self) -> float:
        return float(self._faults.get("patience", "2"))

    async def _take(self) -> list[dict[str, Any]]:
        """Return what there is to tell, waiting a while for the first of it."""
        told = self._core.take()
        for _ in range(int(self._patience_s / 0.02)):
            if told:
                break
            await asyncio.sleep(0.02)
            told = self._core.take()
        return told

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        answer = await super()._answer(request, handler)
        if isinstance(answer, web.Response) and answer.status >= 400 and answer.text:
            nested = json.loads(answer.text).get("error", {})
            return web.json_response({"object": "error", **nested}, status=answer.status)
        return answer

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        self._refuse(request.path, json.loads(body))
        self._completions += 1
        if self._completions >= int(self._faults.get("crashes-at", 10**9)):
            say("[11/30/2026-01:02:03] [TRT-LLM] [E] ValueError: lost device")
            os._exit(139)
        arrived_ns = self.reads.last_ns(request.transport)
        ask = parse(body, self._model, chat=chat)
        if not self._arguments["enable_chunked_prefill"]:
            most = self._arguments["max_num_tokens"]
            if len(ask.prompt_ids) > most:
                raise RequestError(f"The prompt length should not exceed max_num_tokens ({most})")
        kind = IdsAnswer if json.loads(body).get("detokenize") is False else TrtAnswer
        answer = kind(ask, self._model.name, self._version)
        if ask.stream:
            return await self._streamed(request, ask, answer, arrived_ns)
        whole = _WholeBody()
        await self._play(self._ticket(request, ask, whole, arrived_ns), whole.ended)
        sequence = whole.ended.result()
        if sequence is None:
            raise RequestError("the engine has stopped", status=503)
        self._note(ask, sequence)
        return web.Response(body=answer.whole(sequence), content_type="application/json")

    async def _streamed(
        self, request: web.Request, ask: ServedRequest, answer: CompletionBody, arrived_ns: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"")
        assert request.transport is not None
        stream = _EventStream(answer, request.transport, chunked=True)
        await self._play(self._ticket(request, ask, stream, arrived_ns), stream.ended)
        sequence = stream.ended.result()
        if sequence is not None:
            self._note(ask, sequence)
        return response

    def _refuse(self, path: str, asked: dict[str, Any]) -> None:
        """Refuse what the request models forbid: any field that they do not have."""
        for name in asked.keys() - FIELDS[path]:
            raise RequestError(f"1 validation error: body.{name}: Extra inputs are not permitted")
        options = asked.get("stream_options")
        if options and not asked.get("stream"):
            raise RequestError("Stream options can only be defined when stream is true.")
        for name in (options or {}).keys() - {"include_usage", "continuous_usage_stats"}:
            raise RequestError(f"stream_options.{name}: Extra inputs are not permitted")

    def _note(self, ask: ServedRequest, sequence: Sequence) -> None:
        """Note a finished request where TensorRT-LLM does, after its last event."""
        size, cached = self._core.config.block_size, sequence.cached_tokens or 0
        tokens = len(ask.prompt_ids)
        self._totals["prompt"] += tokens
        self._totals["cached"] += cached
        self._totals["generation"] += sequence.generated_tokens
        if self._arguments["return_perf_metrics"] and self._arguments["perf_metrics_max_requests"]:
            missed = -(-(tokens - cached) // size)
            blocks = {"num_reused_blocks": cached // size, "num_missed_blocks": missed}
            told = {"request_id": self._completions, "perf_metrics": {"kv_cache_metrics": blocks}}
            self._finished.append(told)


def start_up(words: list[str], faults: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return flags and arguments, having written what TensorRT-LLM logs while it starts."""
    family = family_of(faults["version"])
    flags = parse_flags(words, family)
    path = flags.get("--config", flags.get("--extra_llm_api_options"))
    options = read_options(path) if path else {}
    check_options(options, family)
    arguments = resolved(flags, options, family)
    speculation = arguments["speculative_config"]
    if speculation and speculation["decoding_type"] == "NGram":
        if not arguments["disable_overlap_scheduler"]:
            log("Disable overlap scheduler for speculation mode NGRAM")
        arguments["disable_overlap_scheduler"] = True
    if arguments["attn_backend"] == "FLASHINFER":
        log("Disabling block reuse for FLASHINFER backend")
        arguments["kv_cache_config"]["enable_block_reuse"] = False
    if arguments["cuda_graph_config"] is not None:
        log("Creating CUDA graph instances for 8 batch sizes.")
    return flags, arguments


def served_name(model: str) -> str:
    return Path(model).name if Path(model).is_dir() else model


async def serve(flags: dict[str, Any], arguments: dict[str, Any], faults: dict[str, str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    settings = embedded_settings(arguments, faults)
    family = family_of(faults["version"])
    if family != "1.1" and "mute" not in faults:
        log(f"LLM Args:\n{argument_line(arguments, family)}")
    core = CountingCore(settings, "loses" in faults)
    core.most_told = None if family == "1.1" else arguments["max_stats_len"]
    name, most = served_name(flags["model"]), settings.max_model_len
    model = ServedModel(name=name, max_model_len=most, vocabulary=VOCABULARY)
    api = TrtApi(core, model, arguments, faults)
    runner = web.AppRunner(
        api.application(1 << 26), handler_cancellation=True, access_log=None, shutdown_timeout=1.0
    )
    await runner.setup()
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    if "ignores-sigterm" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, told.set)
    handlers = runner.server
    assert handlers is not None
    host, port = flags["--host"], flags["--port"]
    await loop.create_server(lambda: api.reads.watch(handlers), host, port, backlog=512)
    stepping = asyncio.create_task(api.engine.run())
    await told.wait()
    stepping.cancel()
    await runner.cleanup()
    say("Application shutdown complete.")


def main(faults_word: str, *words: str) -> None:
    """Serve until stopped, or fail as `faults_word` says."""
    faults = {"version": "1.3.0rc3"}
    faults |= {name: value for name, _, value in (f.partition("=") for f in faults_word.split(","))}
    threading.Timer(LIFE_S, lambda: os._exit(3)).start()
    try:
        flags, arguments = start_up(list(words), faults)
    except RefusedError as refused:
        say(str(refused))
        os._exit(refused.code)
    if "orphan" in faults:
        hide_a_worker(flags["model"])
    if "dies-of" in faults:
        say(DEATHS[faults["dies-of"]])
        os._exit(1)
    time.sleep(LIFE_S if "never-listens" in faults else float(faults.get("start", 0)))
    asyncio.run(serve(flags, arguments, faults))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

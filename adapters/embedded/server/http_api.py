"""The HTTP routes of the OpenAI-compatible server in front of the real-time engine.

When a step ends, events are written directly to their connections, without a task for each. With
100 streams this keeps the last one on time. Unread data stays in memory, at most one response for
each connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import HttpVersion11, web

from harness.adapters.base import EngineError
from harness.adapters.embedded.engine import Sequence
from harness.adapters.embedded.server.openai_requests import (
    ServedModel,
    ServedRequest,
    parse,
    unpacked,
)
from harness.adapters.embedded.server.openai_responses import DONE, CompletionBody, event
from harness.adapters.embedded.server.prometheus import MetricsPage
from harness.adapters.embedded.server.reads import Reads
from harness.adapters.embedded.server.real_time import Listener, RealTimeEngine, Ticket
from harness.adapters.embedded.server.request_error import RequestError

_OWNER = "harness, simulated"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Ended = asyncio.Future[Sequence | None]  # None: the engine stopped before the end


class _WholeBody:
    """The listener for a response that is sent as a whole."""

    def __init__(self) -> None:
        self.ended: _Ended = asyncio.get_running_loop().create_future()

    def prepare(
        self,
        sequence: Sequence,
        sent_tokens: int,  # noqa: ARG002 - required by Listener
    ) -> Callable[[], None]:
        return partial(self._end, sequence) if sequence.finished_ns is not None else _do_nothing

    def drop(self) -> None:
        self._end(None)

    def _end(self, sequence: Sequence | None) -> None:
        if not self.ended.done():  # done: the client has disconnected
            self.ended.set_result(sequence)


class _EventStream(_WholeBody):
    """The listener for a stream of events. The events of one step are sent in one write."""

    def __init__(
        self, body: CompletionBody, transport: asyncio.Transport, *, chunked: bool
    ) -> None:
        super().__init__()
        self._body = body
        self._transport = transport
        self._chunked = chunked

    def prepare(self, sequence: Sequence, sent_tokens: int) -> Callable[[], None]:
        opening = b"" if sent_tokens else self._body.opening_event()
        data = self._framed(opening + self._body.events(sequence, sent_tokens))
        return partial(self._send, data, super().prepare(sequence, sent_tokens))

    def drop(self) -> None:
        self._send(self._framed(event(_stopped().body()) + DONE), super().drop)

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def _send(self, data: bytes, then: Callable[[], None]) -> None:
        if not self.ended.done() and not self._transport.is_closing():
            self._transport.write(data)
        then()


def _do_nothing() -> None:
    """Do nothing, because the output is not complete yet."""


class Api:
    """The routes and their handlers. `version` is the engine version in responses."""

    def __init__(
        self, engine: RealTimeEngine, model: ServedModel, metrics: MetricsPage, version: str
    ) -> None:
        self.reads = Reads(engine)  # the server registers each new connection with it
        self._engine = engine
        self._model = model
        self._metrics = metrics
        self._version = version

    def application(self, most_body_bytes: int) -> web.Application:
        """Return the application. It refuses bodies larger than `most_body_bytes`."""

        @web.middleware
        async def answering(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        application = web.Application(client_max_size=most_body_bytes, middlewares=[answering])
        application.add_routes(
            [
                web.post("/v1/completions", self.completions),
                web.post("/v1/chat/completions", self.chat),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
            ]
        )
        return application

    async def _answer(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Handle a request, write errors in the form of the API, and end the engine's wait."""
        try:
            return await handler(request)
        except RequestError as error:
            refusal = error
        except web.HTTPException as error:
            refusal = _refusal(error)
        finally:
            self._engine.settle(request.transport)
        return web.json_response(refusal.body(), status=refusal.status, headers=refusal.headers)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue a prompt."""
        return await self._complete(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a chat."""
        return await self._complete(request, chat=True)

    async def models(self, _: web.Request) -> web.Response:
        """Return the served model."""
        model = {
            "id": self._model.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": _OWNER,
            "root": self._model.name,
            "parent": None,
            "max_model_len": self._model.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def health(self, _: web.Request) -> web.Response:
        """Return 200 while the engine runs, 503 after it has stopped."""
        return web.Response(status=503 if self._engine.stopped else 200)

    async def version(self, _: web.Request) -> web.Response:
        """Return the version and kind of the engine."""
        kind = {"version": self._version, "engine": "embedded", "kind": "simulated"}
        return web.json_response(kind)

    async def metrics(self, _: web.Request) -> web.Response:
        """Return the counters in the Prometheus format."""
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(text=self._metrics.text(), headers=headers)

    async def reset_prefix_cache(self, _: web.Request) -> web.Response:
        """Clear the prefix cache; `success` is false while requests are in flight."""
        try:
            self._engine.reset()
        except EngineError:
            return web.json_response({"success": False})
        return web.json_response({"success": True})

    async def _complete(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        data = await self._data(request)
        arrived_ns = self.reads.last_ns(request.transport)  # excludes parsing time
        completion = parse(data, self._model, chat=chat)
        body = CompletionBody(completion, self._model.name, f"{self._version}-simulated")
        if completion.stream:
            return await self._stream(request, completion, body, arrived_ns)
        whole = _WholeBody()
        await self._play(self._ticket(request, completion, whole, arrived_ns), whole.ended)
        sequence = whole.ended.result()
        if sequence is None:
            raise _stopped()
        return web.Response(body=body.whole(sequence), content_type="application/json")

    async def _data(self, request: web.Request) -> bytes:
        """Return the decompressed body. Raises `RequestError` if it is too large or invalid."""
        most_bytes = request.client_max_size
        if (request.content_length or 0) > most_bytes:
            raise RequestError(f"the body is larger than {most_bytes} bytes", status=413)
        coding = request.headers.get("Content-Encoding", "")
        return unpacked(await request.read(), coding, most_bytes)

    async def _stream(
        self,
        request: web.Request,
        completion: ServedRequest,
        body: CompletionBody,
        arrived_ns: int,
    ) -> web.StreamResponse:
        if self._engine.stopped:
            raise _stopped()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(b"")  # sends the headers; events then go directly to the transport
        if request.transport is None:
            raise ConnectionResetError("the client has disconnected")
        stream = _EventStream(body, request.transport, chunked=request.version >= HttpVersion11)
        await self._play(self._ticket(request, completion, stream, arrived_ns), stream.ended)
        return response

    def _ticket(
        self,
        request: web.Request,
        completion: ServedRequest,
        listener: Listener,
        arrived_ns: int,
    ) -> Ticket:
        return Ticket(
            prompt_ids=completion.prompt_ids,
            output_tokens=completion.output_tokens,
            listener=listener,
            arrived_ns=arrived_ns,
            connection=request.transport,
        )

    async def _play(self, ticket: Ticket, ended: _Ended) -> None:
        """Wait until the output has ended. A disconnect cancels this task."""
        try:
            self._engine.submit(ticket)
        except EngineError as error:
            raise _stopped() from error
        try:
            await ended
        finally:
            self._engine.cancel(ticket)


def _refusal(error: web.HTTPException) -> RequestError:
    """Return the API's error for an unknown route or method, or a body that is too large."""
    unknown = error.status == web.HTTPNotFound.status_code
    kind = "NotFoundError" if unknown else "BadRequestError"
    allowed = error.headers.get("Allow")
    return RequestError(
        error.reason,
        kind=kind,
        status=error.status,
        headers=None if allowed is None else {"Allow": allowed},
    )


def _stopped() -> RequestError:
    return RequestError("the engine has stopped", kind="ServiceUnavailableError", status=503)

"""A server with known token times, to measure a client; one process, standard library only.

    python -m harness.reference.server --port 0 --ttft-ms 50 --itl-ms 10 --log FILE [--cpu N]

It implements the part of OpenAI's HTTP API that a load needs. Like an engine it works in steps: a
tick every `--itl-ms` sends one token to each running stream. The first tick of a request is the
first one that is due at least `--ttft-ms` after the request was read. The log contains the time
just before each token is written to its socket, and the lateness of each tick, so that a client's
error can be separated from the server's. SIGTERM or Ctrl-C ends the server and completes the log.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter_ns

from harness.reference.bodies import (
    COMPLETIONS,
    CONTINUE,
    STREAM_HEAD,
    BadRequestError,
    CompletionRequest,
    HttpRequest,
    events,
    page,
    read_completion,
    refusal,
    tail,
    take_request,
    waits_for_continue,
    whole_answer,
)
from harness.reference.log import LogWriter, SentAnswer, Tick
from harness.timing import going_first

_READ_BYTES = 1 << 18
_QUEUE = 4096  # connections that wait to be accepted
_AT_ONCE = 16  # sockets per round, so that reading many requests does not delay a tick
_IDLE_S = 0.2  # time without a stream after which the log is written


class _ClientConnection:
    """One keep-alive connection of a client."""

    __slots__ = ("backlog", "buffer", "sock", "stream")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()  # requests that are incomplete or not yet answered
        self.backlog = bytearray()  # bytes of an answer that the socket did not accept
        self.stream: _TokenStream | None = None


class _TokenStream:
    """One answer in progress."""

    __slots__ = (
        "completion",
        "connection",
        "events",
        "first_due_ns",
        "held",
        "received_ns",
        "sent_ns",
    )

    def __init__(
        self,
        completion: CompletionRequest,
        connection: _ClientConnection,
        received_ns: int,
        ttft_ns: int,
    ) -> None:
        self.completion = completion
        self.connection = connection
        self.events: Iterator[bytes] = events(completion)
        self.received_ns = received_ns
        self.first_due_ns = received_ns + ttft_ns
        self.sent_ns: list[int] = []
        self.held = False  # whether the socket did not accept all bytes at once

    @property
    def done(self) -> bool:
        """Whether all tokens have been sent."""
        return len(self.sent_ns) == self.completion.tokens


class ReferenceServer:
    """The server of all connections to `listener`, until a descriptor in `ends` is readable."""

    def __init__(
        self,
        listener: socket.socket,
        log: LogWriter,
        ends: Sequence[int],
        *,
        model: str = "reference",
        running_usage: bool = True,
    ) -> None:
        self.requests = 0  # completions, with and without streaming
        self._listener = listener
        self._log = log
        self._ends = ends
        self._model, self._running_usage = model, running_usage
        self._connections: dict[int, _ClientConnection] = {}
        self._waiting: deque[_TokenStream] = (
            deque()
        )  # streams before their first token, in the order of their due times
        self._running: list[_TokenStream] = []
        self._next_due_ns = perf_counter_ns()
        self._ended = False
        self._epoll = select.epoll()
        for number in (listener.fileno(), *ends):
            self._epoll.register(number, select.EPOLLIN)

    def serve(self) -> None:
        """Serve until the end, then write the log, which includes answers that were cut."""
        while not self._ended:
            self._wait()
            for number, flags in self._epoll.poll(0, _AT_ONCE):
                self._look_at(number, flags)
            if self._busy and perf_counter_ns() >= self._next_due_ns:
                self._tick()
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._log.flush()

    @property
    def _busy(self) -> bool:
        return bool(self._running or self._waiting)

    def _wait(self) -> None:
        """Wait until a socket is ready or the next tick is due.

        `select` waits on the epoll, because the timeout of epoll itself has millisecond precision.
        """
        if self._busy:
            left_ns = self._next_due_ns - perf_counter_ns()
            select.select((self._epoll,), (), (), max(left_ns, 0) / 1e9)
        elif not select.select((self._epoll,), (), (), _IDLE_S)[0] and self._log.answers:
            self._log.flush()

    # Tokens.

    def _tick(self) -> None:
        """Send one token to each running stream."""
        begun_ns, first_due_ns = perf_counter_ns(), self._next_due_ns
        missed = (begun_ns - first_due_ns) // self._log.itl_ns
        due_ns = first_due_ns + missed * self._log.itl_ns
        self._next_due_ns = due_ns + self._log.itl_ns
        while self._waiting and self._waiting[0].first_due_ns <= due_ns:
            self._running.append(self._waiting.popleft())
        streams, done = self._running, 0
        for stream in streams:
            token = next(stream.events)
            stream.sent_ns.append(perf_counter_ns())
            self._send(stream.connection, token)
            if stream.done:
                self._send(stream.connection, tail(stream.completion))
                done += 1
        if streams:
            tick = Tick(first_due_ns, begun_ns, perf_counter_ns(), len(streams))
            self._log.ticks.append(tick)
        if done:
            self._running = [stream for stream in streams if not stream.done]
            for stream in streams:
                if stream.done:
                    self._end(stream)

    def _send(self, connection: _ClientConnection, data: bytes) -> None:
        """Write `data` to the socket, and keep the bytes that it does not accept."""
        if connection.backlog:
            connection.backlog += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the client disconnected; epoll reports it next
        if sent < len(data):
            connection.backlog += data[sent:]
            if connection.stream is not None:
                connection.stream.held = True
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _end(self, stream: _TokenStream) -> None:
        """Log a finished answer, and serve the requests that its client sent meanwhile."""
        self._note(stream)
        stream.connection.stream = None
        self._serve(stream.connection, perf_counter_ns())

    def _note(self, stream: _TokenStream) -> None:
        answer = SentAnswer(
            response_id=stream.completion.response_id,
            asked_tokens=stream.completion.tokens,
            received_ns=stream.received_ns,
            sent_ns=stream.sent_ns,
            held=stream.held,
        )
        self._log.answers.append(answer)

    # Sockets.

    def _look_at(self, number: int, flags: int) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            if flags & select.EPOLLOUT:
                self._send_backlog(connection)
            if flags & ~select.EPOLLOUT:
                self._read(connection)
        elif number in self._ends:
            self._ended = True
        elif number == self._listener.fileno():
            self._accept()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the client disconnected, or the limit of open files is reached
            return
        sock.setblocking(False)  # noqa: FBT003 - the standard library's own call
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections[sock.fileno()] = _ClientConnection(sock)
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def _send_backlog(self, connection: _ClientConnection) -> None:
        backlog = bytes(connection.backlog)
        connection.backlog.clear()
        self._epoll.modify(connection.sock.fileno(), select.EPOLLIN)
        self._send(connection, backlog)

    def _read(self, connection: _ClientConnection) -> None:
        try:
            data = connection.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        received_ns = perf_counter_ns()
        if not data:
            self._drop(connection)
            return
        connection.buffer += data
        self._serve(connection, received_ns)

    def _drop(self, connection: _ClientConnection) -> None:
        """Close a connection, and log its answer in progress."""
        if (stream := connection.stream) is not None:
            self._note(stream)
            connection.stream = None
            self._running = [one for one in self._running if one is not stream]
            self._waiting = deque(one for one in self._waiting if one is not stream)
        del self._connections[connection.sock.fileno()]
        connection.sock.close()  # also removes it from the epoll

    # Requests.

    def _serve(self, connection: _ClientConnection, received_ns: int) -> None:
        """Answer the buffered requests up to the first one that starts a stream."""
        try:
            while connection.stream is None and connection.buffer:
                request = take_request(connection.buffer)
                if request is None:
                    if waits_for_continue(connection.buffer):
                        self._send(connection, CONTINUE)
                    return
                self._answer(connection, request, received_ns)
        except BadRequestError as error:
            connection.buffer.clear()  # the start of the next request is unknown
            self._send(connection, refusal(400, str(error)))

    def _answer(
        self, connection: _ClientConnection, request: HttpRequest, received_ns: int
    ) -> None:
        if request.method == "POST" and request.path in COMPLETIONS:
            completion = read_completion(request, self.requests, running_usage=self._running_usage)
            self.requests += 1
            if completion.stream:
                self._start(_TokenStream(completion, connection, received_ns, self._log.ttft_ns))
            else:
                self._send(connection, whole_answer(completion))  # has no token times
        else:
            self._send(connection, page(request, self._model))

    def _start(self, stream: _TokenStream) -> None:
        """Send the head of an answer now, and schedule its tokens."""
        if not self._busy:  # ticks without a stream are not late
            idle_ns = perf_counter_ns() - self._next_due_ns
            self._next_due_ns += max(0, -(-idle_ns // self._log.itl_ns)) * self._log.itl_ns
        stream.connection.stream = stream
        self._waiting.append(stream)
        self._send(stream.connection, STREAM_HEAD)


def main(words: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, Ctrl-C or, with `--end-with-stdin`, the end of stdin; return 0."""
    arguments = _parser().parse_args(words)
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    ends = [_descriptor_of_signals(), *([0] if arguments.end_with_stdin else [])]
    with (
        socket.create_server((arguments.host, arguments.port), backlog=_QUEUE) as listener,
        arguments.log.open("w", encoding="utf-8") as file,
    ):
        listener.setblocking(False)  # noqa: FBT003 - the standard library's own call
        send_unpaced(listener)
        log = LogWriter(
            file,
            ttft_ns=round(arguments.ttft_ms * 1e6),
            itl_ns=round(arguments.itl_ms * 1e6),
        )
        server = ReferenceServer(
            listener,
            log,
            ends,
            model=arguments.model,
            running_usage=not arguments.usage_at_end,
        )
        gc.disable()  # a collection would delay a tick, and there are no cycles to collect
        print(listener.getsockname()[1], flush=True)  # noqa: T201  the caller reads the port
        with going_first():
            server.serve()
    return 0


def send_unpaced(listener: socket.socket) -> None:
    """Select the congestion control Reno, so that the kernel does not delay tokens.

    BBR, the default of some systems, paces tokens: it takes the token rate for the capacity of the
    network, and a stream that is late once stays late for seconds. That would look like an error of
    the client. Reno is in every kernel and does not pace.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        listener.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno"
        )  # for all accepted connections


def _descriptor_of_signals() -> int:
    """Return a descriptor that becomes readable after SIGTERM or Ctrl-C."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.reference.server",
        description="Serve streams with known token times, and log them. Print the port.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port (default: 0, any free port)"
    )
    parser.add_argument(
        "--ttft-ms", type=float, default=50.0, metavar="T", help="TTFT in ms (default: 50)"
    )
    parser.add_argument(
        "--itl-ms", type=float, default=10.0, metavar="T", help="time between tokens (default: 10)"
    )
    parser.add_argument(
        "--log", type=Path, required=True, metavar="FILE", help="log of the token times"
    )
    parser.add_argument("--cpu", type=int, metavar="N", help="core to run on (default: any)")
    parser.add_argument(
        "--model", default="reference", metavar="M", help="model name (default: reference)"
    )
    parser.add_argument(
        "--usage-at-end", action="store_true", help="send no running usage, even if requested"
    )
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="end at the end of stdin, with the caller"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

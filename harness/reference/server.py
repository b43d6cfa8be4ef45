"""A server of known token times, to measure a client with; one process, standard library only.

    python -m harness.reference.server --port 0 --ttft-ms 50 --itl-ms 10 --log FILE [--cpu N]

It speaks as much of OpenAI's HTTP as a load needs and streams as an engine does that works in
steps: a tick every `--itl-ms`, at which each running stream gets one token. A request's first tick
is the first that is due `--ttft-ms` or more after it was read. Just before each token is handed to
its socket its time is noted, and how late each tick began: a client's error and the server's own
cannot be taken for each other. SIGTERM or Ctrl-C ends it, and the log is whole then.
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
_AT_ONCE = 16  # sockets looked at before the tick is: reading many requests must not make it late
_IDLE_S = 0.2  # without a stream; then the log is written


class _ClientConnection:
    """One client's connection, kept from request to request."""

    __slots__ = ("backlog", "buffer", "sock", "stream")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray()  # of requests that are not whole yet, or not yet answered
        self.backlog = bytearray()  # of an answer that the socket did not take
        self.stream: _TokenStream | None = None


class _TokenStream:
    """One answer on its way."""

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
        self.held = False  # the socket did not take all at once

    @property
    def done(self) -> bool:
        """Whether all tokens have been sent."""
        return len(self.sent_ns) == self.completion.tokens


class ReferenceServer:
    """Serves what connects to `listener`, until one of the descriptors `ends` has something."""

    def __init__(
        self,
        listener: socket.socket,
        log: LogWriter,
        ends: Sequence[int],
        *,
        model: str = "reference",
        running_usage: bool = True,
    ) -> None:
        self.requests = 0  # completions, those that do not stream included
        self._listener = listener
        self._log = log
        self._ends = ends
        self._model, self._running_usage = model, running_usage
        self._connections: dict[int, _ClientConnection] = {}
        self._waiting: deque[_TokenStream] = (
            deque()
        )  # before their first token, in the order of those
        self._running: list[_TokenStream] = []
        self._next_due_ns = perf_counter_ns()
        self._ended = False
        self._epoll = select.epoll()
        for number in (listener.fileno(), *ends):
            self._epoll.register(number, select.EPOLLIN)

    def serve(self) -> None:
        """Serve; in the end all is in the log, answers that were cut short included."""
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
        """Return when a socket has something, or the next tick is due.

        By `select`, on the epoll itself: an epoll's own waiting counts in milliseconds.
        """
        if self._busy:
            left_ns = self._next_due_ns - perf_counter_ns()
            select.select((self._epoll,), (), (), max(left_ns, 0) / 1e9)
        elif not select.select((self._epoll,), (), (), _IDLE_S)[0] and self._log.answers:
            self._log.flush()

    # Tokens.

    def _tick(self) -> None:
        """Send a token to each stream that has one due."""
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
        """Hand `data` to the socket, or keep what it does not take."""
        if connection.backlog:
            connection.backlog += data
            return
        try:
            sent = connection.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the client has gone, which the epoll reports next
        if sent < len(data):
            connection.backlog += data[sent:]
            if connection.stream is not None:
                connection.stream.held = True
            self._epoll.modify(connection.sock.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _end(self, stream: _TokenStream) -> None:
        """Note an answer that is over, and read what its client has sent meanwhile."""
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
        except OSError:  # it has gone again, or this process may have no more sockets
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
        """Close a connection; an answer on its way ends here."""
        if (stream := connection.stream) is not None:
            self._note(stream)
            connection.stream = None
            self._running = [one for one in self._running if one is not stream]
            self._waiting = deque(one for one in self._waiting if one is not stream)
        del self._connections[connection.sock.fileno()]
        connection.sock.close()  # which takes it out of the epoll

    # Requests.

    def _serve(self, connection: _ClientConnection, received_ns: int) -> None:
        """Answer what the buffer holds, up to a request whose answer takes its time."""
        try:
            while connection.stream is None and connection.buffer:
                request = take_request(connection.buffer)
                if request is None:
                    if waits_for_continue(connection.buffer):
                        self._send(connection, CONTINUE)
                    return
                self._answer(connection, request, received_ns)
        except BadRequestError as error:
            connection.buffer.clear()  # where the next request begins is unknown
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
                self._send(connection, whole_answer(completion))  # at once: it has no token times
        else:
            self._send(connection, page(request, self._model))

    def _start(self, stream: _TokenStream) -> None:
        """Begin an answer: its head at once, its tokens at their ticks."""
        if not self._busy:  # ticks that nobody waited for are not late
            idle_ns = perf_counter_ns() - self._next_due_ns
            self._next_due_ns += max(0, -(-idle_ns // self._log.itl_ns)) * self._log.itl_ns
        stream.connection.stream = stream
        self._waiting.append(stream)
        self._send(stream.connection, STREAM_HEAD)


def main(words: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM, Ctrl-C or, where requested, the end of stdin; return 0."""
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
        gc.disable()  # there are no cycles to collect, and a collection would hold up a tick
        print(listener.getsockname()[1], flush=True)  # noqa: T201  whoever started it waits for it
        with going_first():
            server.serve()
    return 0


def send_unpaced(listener: socket.socket) -> None:
    """Keep the kernel from holding tokens back: BBR, the default of some systems, paces them.

    It takes the pace of the tokens for that of the network, and a stream that was once behind stays
    so for seconds, which would pass for the client's error. Every kernel has Reno, which does not.
    """
    if hasattr(socket, "TCP_CONGESTION"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")  # for all accepted


def _descriptor_of_signals() -> int:
    """Return a descriptor that is readable once SIGTERM or Ctrl-C came."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.reference.server",
        description="Serve streams of known token times, and log them. Prints its port.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="0: a free one")
    parser.add_argument("--ttft-ms", type=float, default=50.0, metavar="T", help="50")
    parser.add_argument("--itl-ms", type=float, default=10.0, metavar="T", help="10")
    parser.add_argument(
        "--log", type=Path, required=True, metavar="FILE", help="what was sent when"
    )
    parser.add_argument("--cpu", type=int, metavar="N", help="the core to stay on")
    parser.add_argument("--model", default="reference", metavar="M", help="its name: reference")
    parser.add_argument(
        "--usage-at-end", action="store_true", help="no running usage, though it is asked for"
    )
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="end when stdin does: with whoever started it"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())

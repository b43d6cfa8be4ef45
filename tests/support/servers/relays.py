"""What stands between a client and a server: TLS, or a gateway that keeps servers below a path."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

_STREAM = b"""\
data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}

data: {"choices":[{"index":0,"text":"b","finish_reason":"length"}]}

data: [DONE]

"""


@contextmanager
def tls_relay(url: str, certificate: Path) -> Iterator[str]:
    """Return the https address that passes every connection on to the server at `url`."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    parts = urlsplit(url)
    listening = socket.create_server(("127.0.0.1", 0))

    def relay(outer: socket.socket) -> None:
        try:
            with (
                tls.wrap_socket(outer, server_side=True) as near,
                socket.create_connection((parts.hostname, parts.port)) as far,
            ):
                back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
                back.start()
                _pass_on(near, far)
                back.join()
        except OSError:
            outer.close()  # a client that does not trust this authority

    def accept() -> None:
        while True:
            try:
                outer, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=relay, args=(outer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


@contextmanager
def below_a_path(path: str) -> Iterator[str]:
    """Return the address of a server that answers below `path` only, and 404 elsewhere."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == f"{path}/v1/models"
            self._answer(200 if known else 404, b'{"data":[{"id":"m"}]}' if known else b"")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            known = self.path == f"{path}/v1/completions"
            self._answer(200 if known else 404, _STREAM if known else b"")

        def log_message(self, *_: object) -> None: ...

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

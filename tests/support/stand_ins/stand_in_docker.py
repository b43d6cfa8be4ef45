"""A stand-in for docker: a daemon that holds containers, and a client that refuses odd flags.

    stand_in_docker.py daemon SOCKET     holds containers until it is told to end
    stand_in_docker.py SOCKET run …      as `docker run`, with the flags that harness gives only
    stand_in_docker.py SOCKET rm --force --volumes NAME
    stand_in_docker.py SOCKET ps         their names, one a line

A container is the daemon's child, so that it outlives a client that is killed. Its environment has
what `-e` names and nothing else of the client's. What an image holds is in `IMAGES`; the variable
STAND_IN_FAULTS gives the stand-in engine in it its faults.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ENTRY_POINTS = {"vllm/vllm-openai": ["vllm", "serve"], "trtllm": ["entry-point"]}
PROGRAMS = {"vllm": "stand_in_vllm.py", "trtllm-serve": "stand_in_trtllm.py"}


def run_options(words: list[str]) -> argparse.Namespace:
    """Return the options of `docker run`; anything that harness should not give ends it."""
    parser = argparse.ArgumentParser("docker run", add_help=False, allow_abbrev=False)
    for switch in ("--rm", "--init"):
        parser.add_argument(switch, action="store_true", required=True)
    parser.add_argument("--pull", required=True, choices=["never"])
    parser.add_argument("--name", required=True)
    parser.add_argument("--label", required=True)
    parser.add_argument("--network", required=True, choices=["host"])
    parser.add_argument("--shm-size", required=True, choices=["32g"])
    parser.add_argument("--gpus", choices=["all"])
    parser.add_argument("-v", action="append", default=[])
    parser.add_argument("-e", action="append", default=[])
    parser.add_argument("--entrypoint")
    parser.add_argument("image")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(words)
    for bind in options.v:
        here, there, *mode = bind.split(":")
        if not Path(here).exists() or not there.startswith("/") or mode not in ([], ["ro"]):
            parser.error(f"bind {bind}: no such path here")
    return options


def inside(options: argparse.Namespace, environment: dict[str, str]) -> list[str]:
    """Return the command of the container's first process."""
    name = options.image.rpartition(":")[0]
    entry = [options.entrypoint] if options.entrypoint else ENTRY_POINTS.get(name, [])
    words = [word for word in (*entry, *options.words) if word != "entry-point"]
    script = TESTS / PROGRAMS[words[0]]
    return [sys.executable, str(script), environment.get("STAND_IN_FAULTS", "-"), *words[1:]]


class Daemon:
    """Holds containers by name."""

    def __init__(self) -> None:
        self.containers: dict[str, subprocess.Popen[bytes]] = {}

    def serve(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"{path}.new")
            door.listen()
            Path(f"{path}.new").rename(path)  # whoever sees the door may knock
            while True:
                client, _ = door.accept()
                threading.Thread(target=self.tend, args=(client,), daemon=True).start()

    def tend(self, client: socket.socket) -> None:
        with client:
            text, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 2)
            asked = json.loads(text)
            answer = getattr(self, asked.pop("do"))(descriptors=descriptors, **asked)
            try:
                client.sendall(json.dumps(answer).encode())
            except OSError:
                return  # a client that was killed hears nothing

    def run(
        self, name: str, command: list[str], environment: dict[str, str], descriptors: list[int]
    ) -> int:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=descriptors[0],
            stderr=descriptors[1],
            start_new_session=True,
        )
        self.containers[name] = process
        for descriptor in descriptors:
            os.close(descriptor)
        code = process.wait()
        self.containers.pop(name, None)
        return code

    def signal(self, name: str, descriptors: list[int]) -> None:
        if name in self.containers:
            self.containers[name].terminate()

    def rm(self, name: str, descriptors: list[int]) -> bool:
        process = self.containers.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()
        return process is not None

    def ps(self, descriptors: list[int]) -> list[str]:
        return list(self.containers)


def ask(path: str, request_set: dict[str, Any], *descriptors: int) -> Any:
    """Return the daemon's answer."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        socket.send_fds(line, [json.dumps(request_set).encode()], descriptors)
        return json.loads(line.recv(1 << 20))


def client(path: str, words: list[str]) -> int:
    """Do what `docker WORDS` does, and return its exit code."""
    if words[0] == "ps":
        print("\n".join(ask(path, {"do": "ps"})))  # noqa: T201  a command line tool
        return 0
    if words[0] == "rm":
        if words[1:3] != ["--force", "--volumes"] or len(words) != 4:
            return 125
        if not ask(path, {"do": "rm", "name": words[3]}):
            print(f"Error response from daemon: No such container: {words[3]}", file=sys.stderr)  # noqa: T201
            return 1
        return 0
    options = run_options(words[1:])
    environment = {"PATH": os.environ["PATH"], "HOME": "/root"}
    for word in options.e:
        name, equals, value = word.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    signal.signal(
        signal.SIGTERM, lambda *_: ask(path, {"do": "signal", "name": options.name}) and None
    )
    request_set = {"do": "run", "name": options.name, "environment": environment}
    code: int = ask(path, {**request_set, "command": inside(options, environment)}, 1, 2)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        Daemon().serve(sys.argv[2])
    sys.exit(client(sys.argv[1], sys.argv[2:]))

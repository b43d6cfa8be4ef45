"""What `harness load`, `serve` and `calibrate` take on the line. Light: the parser needs it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.commands.arguments.requests import add_requests

DIALECTS = ("vllm", "sglang", "aiperf", "guidellm")

_LOAD = "load an OpenAI-compatible server that runs already, and print what it did"
_SERVE = "serve the embedded engine over HTTP, in real time (simulated)"
_CALIBRATE = "measure how exact this machine's client is, and up to which load"
_TOGGLES = """\
toggles are given as NAME=VALUE, as in a sweep file: prefix_caching=off speculative=eagle
"""


class Once(argparse.Action):
    """An option that may stand once: of two, argparse would drop the first in silence."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Take the value. Ends with a usage error where one was given before."""
        given = namespace.__dict__.setdefault("given", set())
        if option_string is not None and self.dest in given:
            parser.error(f"{option_string} stands twice; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def add_load(commands: Any) -> argparse.ArgumentParser:
    """Add the command `load` and return its parser."""
    load: argparse.ArgumentParser = commands.add_parser("load", help=_LOAD, description=_LOAD)
    load.register("action", None, Once)
    _add_server(load)
    load.add_argument(
        "--workload",
        default="shared-prefix",
        metavar="KIND",
        help="shared-prefix (default), multi-turn, or trace:PATH",
    )
    _add_traffic(load)
    _add_amount(load.add_argument_group("how much, closed loop (default) or open loop"))
    add_requests(load)
    load.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="the model's folder or tokenizer.json: prompts use its whole vocabulary",
    )
    load.add_argument("--seed", type=_natural, default=0, metavar="N", help="0")
    load.add_argument("--warmup", type=_natural, default=0, metavar="N", help="requests before: 0")
    load.add_argument(
        "--timeout",
        default="30 min",
        metavar="T",
        help="until the answer to a request must have ended, as '30 s' or 30 (default: 30 min)",
    )
    load.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="processes that offer the load; auto (default): one, or more for a rate that needs "
        "them by what `harness calibrate` found",
    )
    load.add_argument("--out", type=Path, metavar="DIR", help="a new folder to keep the records in")
    add_dialect(load)
    load.set_defaults(command="load", folder=None)
    return load


def _add_server(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "url",
        metavar="URL",
        help="the server or the root of its API, such as http://127.0.0.1:8000",
    )
    load.add_argument("--model", required=True, metavar="M", help="the name that requests carry")
    load.add_argument(
        "--no-model-check",
        action="store_true",
        help="request the model although the server does not list it",
    )
    load.add_argument(
        "--metrics-url",
        action="append",
        default=[],
        metavar="URL",
        help="a replica behind the server, whose counters are read; repeat it for each replica, "
        "and they are added up (default: the counters of URL)",
    )
    load.add_argument(
        "--api-key-env",
        nargs="?",
        const="OPENAI_API_KEY",
        metavar="NAME",
        help="the variable that holds the server's key; without NAME OPENAI_API_KEY",
    )
    load.add_argument(
        "--wait",
        metavar="T",
        help="time for the server and its model to become ready, as '5 min' or 300 (default: 30 s; "
        "10 s for a model that is listed and refuses every request)",
    )


def _add_traffic(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "--prompt-tokens",
        type=whole_number,
        metavar="N",
        help="128; of shared-prefix half is a text that all requests share, of multi-turn it is "
        "each question",
    )
    load.add_argument("--output-tokens", type=whole_number, metavar="N", help="256")
    load.add_argument("--turns", type=whole_number, metavar="N", help="of multi-turn: 4")
    load.add_argument("--format", metavar="F", help="of a trace: as its first line looks")
    load.add_argument(
        "--time-unit", metavar="U", help="of a trace's timestamp, as ms: its format's own"
    )
    load.add_argument(
        "--block-tokens", type=whole_number, metavar="N", help="of a trace with block ids: its own"
    )
    load.add_argument(
        "--bad-rows",
        choices=("refuse", "skip"),
        help="of a trace, lines that hold no request: refuse",
    )


def _add_amount(how: argparse._ArgumentGroup) -> None:
    how.add_argument("--concurrency", type=whole_number, metavar="N", help="conversations alive: 1")
    how.add_argument(
        "--requests",
        type=whole_number,
        metavar="N",
        help="closed loop: 100, of a trace all its rows; at most 1,000,000",
    )
    how.add_argument("--rate", type=_positive, metavar="R", help="conversations started a second")
    how.add_argument(
        "--duration", metavar="T", help="of an open loop, as '60 s'; a plain number is seconds"
    )
    how.add_argument(
        "--max-concurrency",
        type=whole_number,
        metavar="N",
        help="of an open loop: conversations alive at most; the others wait, and it counts",
    )
    how.add_argument(
        "--arrivals",
        choices=("poisson", "constant", "trace"),
        help="of an open loop: poisson; trace: the times of the trace, without a rate",
    )
    how.add_argument(
        "--speedup", type=_positive, metavar="X", help="of --arrivals trace: 1; 2 is twice as fast"
    )


def add_dialect(command: argparse.ArgumentParser) -> None:
    """Add the option that states the records as another tool would."""
    command.add_argument(
        "--dialect",
        choices=DIALECTS,
        help="below the figures, the same records by that tool's formulas, and what differs",
    )


def add_serve(commands: Any) -> argparse.ArgumentParser:
    """Add the command `serve` and return its parser."""
    serve: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help=_SERVE,
        description=_SERVE,
        epilog=_TOGGLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.register("action", None, Once)
    serve.add_argument("toggles", nargs="*", metavar="NAME=VALUE", help="a toggle to flip")
    serve.add_argument("--host", default="127.0.0.1", help="127.0.0.1")
    serve.add_argument("--port", type=_port, default=8000, metavar="N", help="8000; 0: a free one")
    serve.add_argument("--model", default="llama-3-70b", metavar="M", help="llama-3-70b")
    serve.add_argument("--gpu", default="a100-80gb", metavar="G", help="a100-80gb")
    serve.add_argument("--count", type=whole_number, default=4, metavar="N", help="GPUs: 4")
    serve.add_argument("--max-model-len", type=whole_number, default=8192, metavar="N", help="8192")
    serve.add_argument("--max-num-seqs", type=whole_number, default=256, metavar="N", help="256")
    serve.add_argument(
        "--max-batched-tokens", type=whole_number, default=512, metavar="N", help="512"
    )
    serve.set_defaults(command="serve", folder=None, json=False)
    return serve


def add_calibrate(commands: Any) -> argparse.ArgumentParser:
    """Add the command `calibrate` and return its parser."""
    calibrate: argparse.ArgumentParser = commands.add_parser(
        "calibrate", help=_CALIBRATE, description=f"{_CALIBRATE}; under a minute"
    )
    calibrate.add_argument(
        "--sweep", type=Path, metavar="SWEEP.yaml", help="tell whether it stays below that load"
    )
    calibrate.add_argument("--out", type=Path, metavar="FILE", help="a new file for the result")
    calibrate.set_defaults(command="calibrate", folder=None)
    return calibrate


def whole_number(text: str) -> int:
    """Return a whole number of at least 1. Raises `ArgumentTypeError` for other words."""
    return _whole(text, 1)


def _workers(text: str) -> int | None:
    return None if text == "auto" else whole_number(text)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, found {text!r}"
        )
    return int(text)


def _port(text: str) -> int:
    number = _whole(text, 0)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"expected a port up to 65535, found {text!r}")
    return number


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, found {text!r}")
    return number

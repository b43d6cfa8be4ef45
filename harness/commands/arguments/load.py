"""The options of `harness load`, `serve` and `calibrate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from harness.commands.arguments.requests import add_requests

DIALECTS = ("vllm", "sglang", "aiperf", "guidellm")

_LOAD = "load a running OpenAI-compatible server and print throughput and latencies"
_LOAD_EXAMPLE = """\
example:
  harness load http://127.0.0.1:8000 --model my-model --concurrency 16 --requests 400
"""
_SERVE = "serve the embedded engine over HTTP, in real time (simulated)"
_CALIBRATE = "measure how exact this machine's client is, and up to which load"
_SERVE_EXAMPLE = """\
example:
  harness serve --model llama-3-8b --gpu h100-80gb --count 1 prefix_caching=off
"""


class Once(argparse.Action):
    """An option that may be given once: argparse would ignore the first of two."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value; end with a usage error if the option was given before."""
        given = namespace.__dict__.setdefault("given", set())
        if option_string is not None and self.dest in given:
            parser.error(f"{option_string} is given twice; give it once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def add_load(commands: Any) -> argparse.ArgumentParser:
    """Add the command `load` and return its parser."""
    load: argparse.ArgumentParser = commands.add_parser(
        "load",
        help=_LOAD,
        description=f"{_LOAD}.",
        epilog=_LOAD_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.register("action", None, Once)
    _add_server(load)
    load.add_argument(
        "--workload",
        default="shared-prefix",
        metavar="KIND",
        help="shared-prefix, multi-turn or trace:PATH (default: shared-prefix)",
    )
    _add_traffic(load)
    _add_amount(
        load.add_argument_group("amount: closed loop (--concurrency) or open loop (--rate)")
    )
    add_requests(load)
    load.add_argument(
        "--tokenizer",
        type=Path,
        metavar="PATH",
        help="the model's folder or tokenizer.json; prompts then use its whole vocabulary",
    )
    load.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed (default: 0)")
    load.add_argument(
        "--warmup",
        type=_natural,
        default=0,
        metavar="N",
        help="unmeasured requests sent first (default: 0)",
    )
    load.add_argument(
        "--timeout",
        default="30 min",
        metavar="T",
        help="time limit of a request, such as '30 s' or 30 (default: 30 min)",
    )
    load.add_argument(
        "--workers",
        type=_workers,
        metavar="N",
        help="processes that send the load (default: auto, one, or as many as the rate needs "
        "according to `harness calibrate`)",
    )
    load.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="new folder for the records (default: none are kept)",
    )
    add_dialect(load)
    load.set_defaults(command="load", folder=None)
    return load


def _add_server(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "url",
        metavar="URL",
        help="the server or the root of its API, such as http://127.0.0.1:8000",
    )
    load.add_argument("--model", required=True, metavar="M", help="model name in the requests")
    load.add_argument(
        "--no-model-check",
        action="store_true",
        help="send requests even if the server does not list the model",
    )
    load.add_argument(
        "--metrics-url",
        action="append",
        default=[],
        metavar="URL",
        help="counters of a replica behind the server; repeat it for each replica, the counters "
        "are added up (default: those of URL)",
    )
    load.add_argument(
        "--api-key-env",
        nargs="?",
        const="OPENAI_API_KEY",
        metavar="NAME",
        help="variable that contains the API key (default: no key; without NAME: OPENAI_API_KEY)",
    )
    load.add_argument(
        "--wait",
        metavar="T",
        help="time for server and model to become ready, such as '5 min' or 300 (default: 30 s; "
        "10 s for a listed model that refuses every request)",
    )


def _add_traffic(load: argparse.ArgumentParser) -> None:
    load.add_argument(
        "--prompt-tokens",
        type=whole_number,
        metavar="N",
        help="tokens of a prompt; in shared-prefix all prompts share the first half, in multi-turn "
        "it is the length of each question (default: 128)",
    )
    load.add_argument(
        "--output-tokens", type=whole_number, metavar="N", help="tokens of an answer (default: 256)"
    )
    load.add_argument(
        "--turns", type=whole_number, metavar="N", help="turns of a conversation (default: 4)"
    )
    load.add_argument(
        "--format", metavar="F", help="format of the trace (default: found from its first line)"
    )
    load.add_argument(
        "--time-unit",
        metavar="U",
        help="unit of the trace's times, such as ms (default: that of its format)",
    )
    load.add_argument(
        "--block-tokens",
        type=whole_number,
        metavar="N",
        help="tokens of a block id (default: that of the format)",
    )
    load.add_argument(
        "--bad-rows",
        choices=("refuse", "skip"),
        help="what to do with rows of the trace that are not requests (default: refuse)",
    )


def _add_amount(how: argparse._ArgumentGroup) -> None:
    how.add_argument(
        "--concurrency", type=whole_number, metavar="N", help="conversations at once (default: 1)"
    )
    how.add_argument(
        "--requests",
        type=whole_number,
        metavar="N",
        help="requests of a closed loop, at most 1,000,000 (default: 100; of a trace: all rows)",
    )
    how.add_argument(
        "--rate", type=_positive, metavar="R", help="conversations that start each second"
    )
    how.add_argument(
        "--duration",
        metavar="T",
        help="length of an open loop, such as '60 s'; a plain number is seconds",
    )
    how.add_argument(
        "--max-concurrency",
        type=whole_number,
        metavar="N",
        help="most conversations at once in an open loop; the others wait, and latencies "
        "include it "
        "(default: no limit)",
    )
    how.add_argument(
        "--arrivals",
        choices=("poisson", "constant", "trace"),
        help="start times of an open loop; trace: the times of the trace, without --rate "
        "(default: poisson)",
    )
    how.add_argument(
        "--speedup", type=_positive, metavar="X", help="how much faster than the trace (default: 1)"
    )


def add_dialect(command: argparse.ArgumentParser) -> None:
    """Add the option that shows the records by another tool's formulas."""
    command.add_argument(
        "--dialect",
        choices=DIALECTS,
        help="add the metrics by that tool's formulas, and explain what differs",
    )


def add_serve(commands: Any) -> argparse.ArgumentParser:
    """Add the command `serve` and return its parser."""
    serve: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help=_SERVE,
        description=f"{_SERVE}.",
        epilog=_SERVE_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.register("action", None, Once)
    serve.add_argument(
        "toggles", nargs="*", metavar="NAME=VALUE", help="toggles, as in a sweep file"
    )
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: %(default)s)"
    )
    serve.add_argument(
        "--port",
        type=_port,
        default=8000,
        metavar="N",
        help="port; 0 takes a free one (default: 8000)",
    )
    serve.add_argument(
        "--model", default="llama-3-70b", metavar="M", help="model (default: llama-3-70b)"
    )
    serve.add_argument("--gpu", default="a100-80gb", metavar="G", help="GPU (default: %(default)s)")
    serve.add_argument(
        "--count", type=whole_number, default=4, metavar="N", help="GPUs (default: 4)"
    )
    serve.add_argument(
        "--max-model-len", type=whole_number, default=8192, metavar="N", help="(default: 8192)"
    )
    serve.add_argument(
        "--max-num-seqs", type=whole_number, default=256, metavar="N", help="(default: 256)"
    )
    serve.add_argument(
        "--max-batched-tokens", type=whole_number, default=512, metavar="N", help="(default: 512)"
    )
    serve.set_defaults(command="serve", folder=None, json=False)
    return serve


def add_calibrate(commands: Any) -> argparse.ArgumentParser:
    """Add the command `calibrate` and return its parser."""
    calibrate: argparse.ArgumentParser = commands.add_parser(
        "calibrate", help=_CALIBRATE, description=f"{_CALIBRATE}. Takes less than a minute."
    )
    calibrate.add_argument(
        "--sweep",
        type=Path,
        metavar="SWEEP.yaml",
        help="check whether this sweep stays within the client's limits",
    )
    calibrate.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="new file for the result (default: the user's cache folder)",
    )
    calibrate.set_defaults(command="calibrate", folder=None)
    return calibrate


def whole_number(text: str) -> int:
    """Return a whole number of at least 1. Raises `ArgumentTypeError` for other text."""
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

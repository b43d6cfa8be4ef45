"""What `harness capacity` takes on the line. Light: the parser needs it."""

from __future__ import annotations

import argparse
from typing import Any

from harness.commands.arguments.load import Once, whole_number

_CAPACITY = "what a model needs on some GPUs, how many users fit, and the floors of its steps"
_NOTE = """\
computed, nothing is started: memory and step times are those of the embedded engine's model. A
model that does not fit is an answer (exit code 0, "fits" in the JSON), with what would make it fit
"""
_LONGEST_TOKENS = 10_000_000  # no model is made for more
KV_DTYPES = ("auto", "fp8", "int8", "int4")
QUANTIZATIONS = ("none", "fp8", "int8", "int4")


def _context(text: str) -> int:
    tokens = whole_number(text)
    if tokens > _LONGEST_TOKENS:
        raise argparse.ArgumentTypeError(f"expected at most {_LONGEST_TOKENS:,} tokens, got {text}")
    return tokens


def add_capacity(commands: Any) -> argparse.ArgumentParser:
    """Add the command `capacity` and return its parser."""
    command: argparse.ArgumentParser = commands.add_parser(
        "capacity",
        help=_CAPACITY,
        description=_CAPACITY,
        epilog=_NOTE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.register("action", None, Once)
    command.add_argument("--model", default="llama-3-70b", metavar="M", help="llama-3-70b")
    command.add_argument("--gpu", default="a100-80gb", metavar="G", help="a100-80gb")
    command.add_argument("--count", type=whole_number, default=4, metavar="N", help="GPUs: 4")
    command.add_argument(
        "--context",
        type=_context,
        default=4096,
        metavar="N",
        help="tokens of each user, prompt and answer together: 4096",
    )
    command.add_argument(
        "--tensor-parallel",
        type=whole_number,
        metavar="N",
        help="GPUs that share one copy of the model: all of them",
    )
    command.add_argument("--quantization", choices=QUANTIZATIONS, default="none", help="none")
    command.add_argument(
        "--kv-dtype", choices=KV_DTYPES, default="auto", help="auto, which is 16 bit"
    )
    command.add_argument(
        "--memory-utilization",
        type=_share,
        default=0.9,
        metavar="X",
        help="share of each GPU's memory that the engine takes: 0.9",
    )
    command.set_defaults(command="capacity", folder=None)
    return command


def _share(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"expected a share above 0 and up to 1, found {text!r}")
    return number

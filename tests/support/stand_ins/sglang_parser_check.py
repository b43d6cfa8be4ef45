"""Run by the Python of a real SGLang: does its own parser take these command lines?

    sglang_parser_check.py < JSON list of [stage, command line]

Prints, for each, null or what was wrong with it, as JSON. The stage is `parse`, or `resolve`, which
also resolves the arguments together: that needs the model's folder and knows this machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import sys
from typing import Any


def fault(words: list[str], arguments: Any, *, resolve: bool) -> str | None:
    """Return what is wrong with one command line; None when it is taken."""
    parser, said = argparse.ArgumentParser("sglang serve"), io.StringIO()
    arguments.add_cli_args(parser)
    with contextlib.redirect_stderr(said):
        try:
            parsed = arguments.from_cli_args(parser.parse_args(words))
            if resolve:
                parsed.resolve_once()
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except (ValueError, AssertionError, NotImplementedError) as error:
            return str(error)
    return None


def main() -> None:
    """Check the command lines on standard input."""
    arguments = importlib.import_module("sglang.srt.server_args").ServerArgs
    found = [
        fault(words, arguments, resolve=stage == "resolve") for stage, words in json.load(sys.stdin)
    ]
    print("RESULT", json.dumps(found))  # noqa: T201  the answer


if __name__ == "__main__":
    main()

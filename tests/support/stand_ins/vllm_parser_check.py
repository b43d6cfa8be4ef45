"""Run by the Python of a real vLLM: do its own parser and configuration take these command lines?

    vllm_parser_check.py < JSON list of [stage, command line]

Prints, for each, null or what was wrong with it, as JSON. The stage is `parse`, or `configure`,
which also resolves the engine's configuration: that needs the model's folder, and knows this
machine's platform only.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from typing import Any


def find(names: tuple[str, ...], attribute: str) -> Any:
    """Return an attribute of the first module that has it: they moved over versions."""
    for name in names:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(name), attribute)
    raise SystemExit(f"this vLLM has no {attribute} in {names}")


def fault(words: list[str], parser: Any, *, configure: bool) -> str | None:
    """Return what is wrong with one command line; None when it is taken."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            options = parser.parse_args(words)
            if configure:
                options.model = options.model_tag
                arguments = find(("vllm.engine.arg_utils",), "AsyncEngineArgs").from_cli_args(
                    options
                )
                arguments.create_engine_config()
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1]
        except ValueError as error:  # pydantic's own is one
            return str(error)
    return None


def main() -> None:
    """Check the command lines on standard input."""
    homes = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
    parsers = ("vllm.utils.argparse_utils", "vllm.utils")
    flexible = find(parsers, "FlexibleArgumentParser")
    parser = find(homes, "make_arg_parser")(flexible(prog="vllm serve"))
    found = [
        fault(words, parser, configure=stage == "configure")
        for stage, words in json.load(sys.stdin)
    ]
    print("RESULT", json.dumps(found))  # noqa: T201  the answer


if __name__ == "__main__":
    main()

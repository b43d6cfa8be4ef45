"""The options of `harness load` that shape every request. Light: the parser needs it."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

Value = TypeVar("Value")
APIS = ("completions", "chat", "responses", "messages")


def add_requests(load: argparse.ArgumentParser) -> None:
    """Add the options that set what every request of a load carries."""
    how = load.add_argument_group("what every request carries")
    how.add_argument(
        "--api",
        choices=APIS,
        default="completions",
        help="the API of the server: OpenAI's completions, chat or responses, or Anthropic's "
        "messages (default: completions)",
    )
    how.add_argument(
        "--request",
        "--extra-body",
        action="append",
        type=_fields,
        metavar="KEY=JSON",
        help="a field of every request, such as temperature=0.7; or a JSON object of fields; may "
        "be repeated",
    )
    how.add_argument(
        "--header",
        "-H",
        action="append",
        type=_header,
        metavar="NAME=VALUE",
        help="a header of every request; its value is never stored; may be repeated",
    )
    how.add_argument(
        "--header-env",
        action="append",
        type=_pair,
        metavar="NAME=VARIABLE",
        help="a header whose value is in an environment variable; may be repeated",
    )
    how.add_argument(
        "--lora",
        action="append",
        type=_share,
        metavar="NAME=SHARE",
        help="share of the requests that name this LoRA adapter as their model, such as a=0.7; "
        "the base model gets the rest; may be repeated",
    )
    trust = how.add_mutually_exclusive_group()
    trust.add_argument(
        "--ca", type=Path, metavar="FILE", help="certificates to trust in place of the machine's"
    )
    trust.add_argument(
        "--no-verify-tls", action="store_true", help="accept any certificate of the server"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenForRequests:
    """What the command line sets of every request, each name once."""

    body: dict[str, Any]
    headers: dict[str, str] = field(repr=False)
    lora: dict[str, float]
    verify_tls: bool | str


def given_for_requests(arguments: argparse.Namespace) -> GivenForRequests:
    """Return what the options set. Raises `ValueError`, which repeats no header's value."""
    fields = [pair for given in arguments.request or () for pair in given.items()]
    return GivenForRequests(
        body=_each_once("--request", fields),
        headers=_each_once("--header", _headers(arguments)),
        lora=_each_once("--lora", arguments.lora or ()),
        verify_tls=_verify_tls(arguments),
    )


def _headers(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    from_variables = [
        (name, _from_variable(name, variable)) for name, variable in arguments.header_env or ()
    ]
    return [*(arguments.header or ()), *from_variables]


def _from_variable(header: str, variable: str) -> str:
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ValueError(
            f"--header-env {header}: the environment variable is empty or not set; export it first"
        )
    return value


def _each_once(option: str, pairs: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{option}: {name} is given twice; give it once")
        found[name] = value
    return found


def _verify_tls(arguments: argparse.Namespace) -> bool | str:
    file: Path | None = arguments.ca
    if file is None and not arguments.no_verify_tls:
        return True
    option = "--no-verify-tls" if file is None else "--ca"
    if not arguments.url.lower().startswith("https:"):
        raise ValueError(f"{option} has an effect on an https:// URL only; leave it out")
    if file is None:
        return False
    if not file.is_file():
        raise ValueError(f"--ca {file}: there is no such file")
    return str(file.absolute())


def _fields(text: str) -> dict[str, Any]:
    """Return one field, or all of a JSON object."""
    if text.lstrip().startswith("{"):
        fields = _json(text, "the JSON object")
        return fields if isinstance(fields, dict) else {}
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected KEY=JSON, such as top_p=0.9, found {text!r}")
    return {name.strip(): _json(value, name.strip())}


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as fault:
        hint = f"; for a text write {name}='\"{text}\"'" if _is_word(text) else ""
        raise argparse.ArgumentTypeError(
            f"{name}: the value is not JSON ({fault}), found {text[:60]!r}{hint}"
        ) from None


def _is_word(text: str) -> bool:
    return bool(text) and text[0] not in '{["' and text.isprintable()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is given twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")


def _header(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=VALUE` or `NAME: VALUE`; an error repeats neither."""
    at = min((i for i in (text.find("="), text.find(":")) if i > 0), default=0)
    if not at:
        raise argparse.ArgumentTypeError("expected NAME=VALUE, such as X-Tenant=bench")
    return text[:at].strip(), text[at + 1 :]


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise argparse.ArgumentTypeError(
            "expected NAME=VARIABLE, such as X-Tenant=TENANT_NAME: the name of a variable"
        )
    return name.strip(), value.strip()


def _share(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition("=")
    try:
        share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not equals or not name or not 0 < share <= 1:
        raise argparse.ArgumentTypeError(
            f"expected NAME=SHARE with a share above 0 and at most 1, found {text!r}"
        )
    return name, share

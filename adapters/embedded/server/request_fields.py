"""Checks of request fields other than prompt and length: types and unsupported fields.

An ignored field would look supported, so every known field without an effect is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.adapters.embedded.server.request_error import RequestError

_ENDS = "an output always has the requested length"
_NO_LANGUAGE = "its tokens have no meaning"
_NO_CHOICE = "it does not sample tokens from probabilities"


def _number(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _whole(value: Any) -> bool:
    return type(value) is int


# Accepted fields: name → check of the value, and description of valid values.
_TYPES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "stream": (_flag, "true or false"),
    "ignore_eos": (_flag, "true or false"),
    "return_token_ids": (_flag, "true or false"),
    "seed": (_whole, "a whole number"),
    "temperature": (_number(0, float("inf")), "a number of at least 0"),
    "top_p": (_number(0, 1), "a number from 0 to 1"),
    "presence_penalty": (_number(-2, 2), "a number from -2 to 2"),
    "frequency_penalty": (_number(-2, 2), "a number from -2 to 2"),
}
# Unsupported fields, which would have to change the output: name → reason.
_NOT_DONE = {
    "stop": _ENDS,
    "stop_token_ids": _ENDS,
    "logprobs": _NO_CHOICE,
    "top_logprobs": _NO_CHOICE,
    "prompt_logprobs": _NO_CHOICE,
    "logit_bias": _NO_CHOICE,
    "use_beam_search": _NO_CHOICE,
    "best_of": "it returns one choice per request",
    "echo": "a response does not contain the prompt",
    "suffix": _NO_LANGUAGE,
    "tools": _NO_LANGUAGE,
    "functions": _NO_LANGUAGE,
    "response_format": _NO_LANGUAGE,
    "structured_outputs": _NO_LANGUAGE,
    "guided_json": _NO_LANGUAGE,
    "guided_regex": _NO_LANGUAGE,
    "guided_choice": _NO_LANGUAGE,
    "guided_grammar": _NO_LANGUAGE,
    "cache_salt": "all requests share one prefix cache",
}
# Values without an effect, in addition to absent, null, false and empty values.
_NOTHING: Mapping[str, Any] = {"best_of": 1, "response_format": {"type": "text"}}
_ZERO_COUNTS = ("logprobs", "prompt_logprobs")  # here 0 requests the logprob of the token itself


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raise `RequestError` for the first unsupported field or field with a wrong type."""
    for name, (is_good, wanted) in _TYPES.items():
        value = fields.get(name)
        if value is not None and not is_good(value):
            raise RequestError(f"{name} must be {wanted}, got {shown(value)}", param=name)
    for name, why in _NOT_DONE.items():
        if _requests(name, fields.get(name)):
            message = f"the embedded engine does not support `{name}`: {why}"
            raise RequestError(message, param=name)


def _requests(name: str, value: Any) -> bool:
    if value == _NOTHING.get(name) and not isinstance(value, bool):
        return False
    return bool(value) or (value == 0 and value is not False and name in _ZERO_COUNTS)


def shown(value: Any) -> str:
    """Return a value of a request for an error message, cut to 60 characters."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"

"""Secrets in what a sweep stores and prints: which values they are, and texts without them.

A secret stands in a variable or behind a flag whose name ends in a word such as TOKEN or KEY, in
the JSON of a flag, or in a URL before the @ and in its query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.adapters.base import EngineSettings

HIDDEN = "(not shown)"
_LEAST = 6  # letters of a value that is searched for in other texts: "1" is in many
_NAME = r"(?:token|keys?|api_?key|secret|passw(?:or)?d|passphrase|credentials?)"
_VARIABLE = re.compile(r"TOKEN|KEY|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_PLACE = re.compile(r"_(?:PATH|FILE|DIR)$", re.IGNORECASE)  # of a file with the secret
_FLAG = re.compile(rf"--?(?:[\w.-]*[_.-])?{_NAME}", re.IGNORECASE)
_ASSIGNED = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_NEXT = re.compile(r"--?[A-Za-z]")  # the flag after a flag's values
_ACCOUNT = re.compile(r"(?<=://)[^/@\s\"']+(?=@)")
_QUERY = re.compile(
    rf"(?<=[?&])((?:[\w-]*[_-])?(?:{_NAME}|sig|signature)=)([^&\s\"']+)", re.IGNORECASE
)
_JSON = re.compile(
    rf"([\"'](?:[\w-]*[_-])?{_NAME}[\"']\s*:\s*)([\"'])((?:(?!\2).)+)\2", re.IGNORECASE
)


def is_secret(variable: str) -> bool:
    """Return whether the name of a variable is one of a secret."""
    return bool(_VARIABLE.search(variable)) and not _PLACE.search(variable)


def without_accounts(text: str) -> str:
    """Return a text without what can be seen to be secret: in URLs and in JSON."""
    text = _ACCOUNT.sub(HIDDEN, text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _JSON.sub(rf"\1\2{HIDDEN}\2", text)


def shown_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command for reading: each value of a secret flag or variable hidden."""
    return [word for word, _ in _read(words)]


def secret_values(settings: EngineSettings) -> frozenset[str]:
    """Return the values of `settings` that no text may show."""
    command = () if settings.runtime is None else settings.runtime.command
    values = [value for name, value in settings.env.items() if is_secret(name)]
    for text in (*settings.env.values(), *settings.extra_args, *command):
        values += _inside(text)
    values += [value for words in (settings.extra_args, command) for _, value in _read(words)]
    parts = {part for value in values for part in (value, value.rpartition(":")[2])}
    return frozenset(part for part in parts if len(part) >= _LEAST and part != HIDDEN)


def hidden(value: Any, secrets: Iterable[str]) -> Any:
    """Return a copy of plain data in which no text holds one of `secrets`, or a URL's account."""
    found = sorted(secrets, key=len, reverse=True)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            for secret in found:
                value = value.replace(secret, HIDDEN)
            return without_accounts(value)
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        return [clean(item) for item in value] if isinstance(value, (list, tuple)) else value

    return clean(value)


def hide_in_file(path: Path, secrets: Iterable[str]) -> None:
    """Take `secrets` out of a log that an engine wrote: engines print their own arguments."""
    found = sorted((secret.encode() for secret in secrets), key=len, reverse=True)
    if not found or not path.is_file():
        return
    data = before = path.read_bytes()
    for secret in found:
        data = data.replace(secret, HIDDEN.encode())
    if data != before:
        path.write_bytes(data)


def _read(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each word as it may be shown, and the secret in it; empty where there is none."""
    after_flag = False
    for word in words:
        name, sign, value = word.partition("=")
        assigned = _ASSIGNED.fullmatch(word)
        if after_flag and not _NEXT.match(word):
            yield HIDDEN, word
        elif _FLAG.fullmatch(name):
            after_flag = not sign
            yield (f"{name}={HIDDEN}" if sign else word), value
        elif assigned and is_secret(assigned[1]):
            yield f"{assigned[1]}={HIDDEN}", assigned[2]
        else:
            after_flag = False
            yield without_accounts(word), ""


def _inside(text: str) -> Iterator[str]:
    """Yield the secrets in URLs and in JSON."""
    yield from _ACCOUNT.findall(text)
    for _, value in _QUERY.findall(text):
        yield value
    for _, _, value in _JSON.findall(text):
        yield value

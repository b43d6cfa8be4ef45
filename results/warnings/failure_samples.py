"""What failed requests said: one sample of each kind, safe to print, and what may be done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.results.store import RecordTable

_SAMPLE_CHARACTERS = 200
_FIELDS = ("stream_options", "ignore_eos", "seed", "max_tokens", "temperature", "prompt")
_KEY = "the server wants an API key: `--api-key-env` names the variable that holds it"
# What a refusal is mended by, where its kind alone tells.
_REMEDIES = {
    "http_401": _KEY,
    "http_403": _KEY,
    "http_404": "look at the address, the name of the model and `--api`",
    "http_429": "the server limits the rate: ask for less load",
    "no_token": "look what the server sends in place of text",
}


def sample_failures(table: RecordTable) -> dict[str, str]:
    """Return kind of failure → the message of the first request that failed so, ready to print."""
    failed = table.columns[table.columns["error_kind"].notna()]
    sampled = failed[failed["error"].notna()].drop_duplicates("error_kind")
    pairs = zip(sampled["error_kind"], sampled["error"], strict=True)
    return {str(kind): one_line(str(text)) for kind, text in sorted(pairs)}


def one_line(text: str) -> str:
    """Return foreign `text` as one short line: what a terminal would obey is spelled out."""
    line = "".join(
        sign if sign.isprintable() else _spelled(sign) for sign in " ".join(text.split())
    )
    return line if len(line) <= _SAMPLE_CHARACTERS else f"{line[:_SAMPLE_CHARACTERS]}…"


def _spelled(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def failure_lines(failures: Mapping[str, int], samples: Mapping[str, str]) -> Iterator[str]:
    """Yield for each kind how often it came, what one of them said, and what to do about it."""
    for kind, failed in failures.items():
        said = samples.get(kind)
        yield f"failed: {failed:,} × {kind}" + (f", such as: {said}" if said else "")
        if remedy := _remedy(kind, said or ""):
            yield f"  remedy: {remedy}"


def _remedy(kind: str, said: str) -> str | None:
    named = [name for name in _FIELDS if name in said]
    if kind in ("http_400", "http_422") and named:
        return f"the server refuses what is sent as {', '.join(named)}: see its documentation"
    return _REMEDIES.get(kind)

"""Whether a model's name that a server does not list may still be one that it takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

_SEPARATORS = re.compile(r"[^0-9a-z]+")


def may_be_served(name: str, listed: Iterable[str]) -> bool:
    """Return whether a request is worth a try: an alias, a short form, or a list of a gateway.

    A server that lists one model of quite another name is usually another server on this port, and
    most engines answer for any name: a request would then measure the wrong model.
    """
    names = list(listed)
    return len(names) != 1 or "*" in names[0] or _related(name, names[0])


def _related(name: str, other: str) -> bool:
    """Return whether one name contains the other: without owner, tag, case and separators."""
    one, two = _bare(name), _bare(other)
    return bool(one and two) and (one in two or two in one)


def _bare(name: str) -> str:
    """Return the name itself: `org/Small-Model:latest` → `smallmodel`."""
    own = name.rpartition("/")[2].partition(":")[0].partition("@")[0]
    return _SEPARATORS.sub("", own.lower())

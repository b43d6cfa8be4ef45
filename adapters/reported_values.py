"""Values that an engine reports of itself, checked where they are read: any of them may be absent.

A value of another type than expected is as good as none. It must not end the run that stores it.
"""

from __future__ import annotations

from typing import Any

_LARGEST = 1 << 53  # beyond it a number is no count of anything here
_DIGITS = 15  # of a count in text
_LONGEST = 200  # characters of a version


def whole(value: Any) -> int | None:
    """Return a reported count, also one in text; None for what is no count of plausible size."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= _LARGEST or value != int(value):
        return None
    return int(value)


def version_text(value: Any) -> str | None:
    """Return a reported version; None for what is neither text nor a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, int) and abs(value) > _LARGEST:
        return None  # Python refuses to write thousands of digits
    return " ".join(str(value).split())[:_LONGEST] or None


def word(value: Any) -> str | None:
    """Return a reported name; None for what is not text."""
    return value[:_LONGEST] if isinstance(value, str) else None

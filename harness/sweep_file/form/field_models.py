"""The fields that forms of a sweep file are made of, and the words for values that do not fit.

A check raises `ValueError` with the whole message: what was wrong, what was expected and found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
)

from harness.sweep_file.problems import did_you_mean, shown
from harness.sweep_file.quantities import duration_ns, positive_share, share

_MOST_TOKENS = 10_000_000
MOST_LETTERS = 100  # of a name: it names folders and files, and stands in tables


def one_of(allowed: tuple[str, ...], later: tuple[str, ...] = ()) -> Callable[[object], object]:
    """Return a check for words of a closed list, which also knows those of a later version."""

    def check(value: object) -> object:
        if value in allowed:
            return value
        if value in later:
            raise ValueError(f"{not_yet(value)}; there is: {', '.join(allowed)}")
        raise ValueError(f"found {shown(value)}{did_you_mean(str(value), allowed)}")

    return check


def not_yet(value: object) -> str:
    """Return the message for a value that a later version supports."""
    return f"{shown(value)} is not in this version yet"


def listed(value: object) -> object:
    """Return a single entry as a list of one, so that one workload needs no list."""
    return value if isinstance(value, list) or value is None else [value]


def existing_file(text: object, info: ValidationInfo) -> Path:
    """Return the file that a relative path means: beside the sweep file first, else from here."""
    if not isinstance(text, str) or not text:
        raise ValueError(f"expected a file; found {shown(text)}")
    given = Path(os.path.expanduser(text))  # noqa: PTH111  Path's own raises for an unknown user
    folder: Path = (info.context or {})["folder"]
    tried = list(dict.fromkeys([(folder / given).resolve(), given.resolve()]))
    for path in tried:
        if os.path.isfile(path):  # noqa: PTH113  Path's own raises for a name that is too long
            return path
        if os.path.isdir(path):  # noqa: PTH112  as above
            raise ValueError(f"{text} is a folder; expected a file (it is {path})")
    raise ValueError(f"there is no file {text}; tried {' and '.join(map(str, tried))}")


Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=MOST_LETTERS)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Tokens = Annotated[int, Field(ge=1, le=_MOST_TOKENS)]
Duration = Annotated[int, BeforeValidator(duration_ns)]
SomeTime = Annotated[int, BeforeValidator(duration_ns), Field(gt=0)]
Share = Annotated[float, BeforeValidator(share)]
PositiveShare = Annotated[float, BeforeValidator(positive_share)]
File = Annotated[Path, BeforeValidator(existing_file)]


class Form(BaseModel):
    """What all mappings of a sweep file have in common: no unknown keys, no guessed types."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=False
    )


class UniformForm(Form):
    """Bounds of `{uniform: …}`, both included."""

    low: Tokens
    high: Tokens


class LognormalForm(Form):
    """Figures of `{lognormal: …}`; what falls outside of low and high is set to it."""

    median: Annotated[float, Field(ge=1)]
    p99: Annotated[float, Field(gt=1)]
    low: Tokens = 1
    high: Tokens | None = None


class UniformLengths(Form):
    """`{uniform: {low: 10, high: 20}}`."""

    uniform: UniformForm


class LognormalLengths(Form):
    """`{lognormal: {median: 120, p99: 900}}`."""

    lognormal: LognormalForm


class EmpiricalLengths(Form):
    """`{empirical: lengths.csv, column: prompt_tokens}`."""

    empirical: File
    column: Text | None = None


def _length_form(value: object) -> str:
    if not isinstance(value, Mapping):
        return "<fixed>"
    forms = ("uniform", "lognormal", "empirical")
    near = (get_close_matches(str(key), forms, n=1) for key in value)
    return f"<{next((found[0] for found in near if found), 'fixed')}>"


def _whole_length(value: object) -> object:
    if type(value) is int and not 0 <= value <= _MOST_TOKENS:
        raise ValueError(f"expected 0 to {_MOST_TOKENS:,} tokens; found {shown(value)}")
    if type(value) is not int:
        wanted = (
            "expected a number of tokens, or one of {uniform: …}, {lognormal: …}, {empirical: …}"
        )
        raise ValueError(f"{wanted}; found {shown(value)}")
    return value


LengthsForm = Annotated[
    Annotated[int, BeforeValidator(_whole_length), Tag("<fixed>")]
    | Annotated[UniformLengths, Tag("<uniform>")]
    | Annotated[LognormalLengths, Tag("<lognormal>")]
    | Annotated[EmpiricalLengths, Tag("<empirical>")],
    Discriminator(_length_form),
]

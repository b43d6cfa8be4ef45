"""The form of one engine of a sweep file, as pydantic models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from harness.adapters import API_PATHS, checked_body, checked_headers, checked_lora
from harness.adapters.embedded import StepProfile, read_profile
from harness.sweep_file.form.field_models import Form, Name, SomeTime, Text, existing_file, one_of
from harness.sweep_file.quantities import positive_share

LATER_ENGINES = ("sglang", "tensorrt-llm", "url")
ATTACHED = "url"  # the engine that is a server which runs already
EMBEDDED = "embedded"  # the one that needs no server, and may take any engine's step times
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")


def _known_engine(name: str, info: ValidationInfo) -> str:
    engines: tuple[str, ...] = (info.context or {})["engines"]
    one_of(engines, tuple(name for name in LATER_ENGINES if name not in engines))(name)
    return name


class RuntimeForm(Form):
    """Where the engine's program is: exactly one of these."""

    path: Text | None = None
    venv: Text | None = None
    command: Annotated[tuple[Text, ...], Field(min_length=1, strict=False)] | None = None
    version: Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.]*$", max_length=40)] | None = None
    docker: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]*$")] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            names = "path, venv, command, version and docker"
            raise ValueError(f"expected one of {names}; found {found}")
        return self


def _key_variable(value: object) -> object:
    """Return the name of a variable; `on` is the usual one. No message shows what may be a key."""
    if value in (True, "on"):
        return DEFAULT_KEY_VARIABLE
    if value is not None and not (isinstance(value, str) and _VARIABLE_NAME.fullmatch(value)):
        raise ValueError(
            "expected the name of the variable that has the key, as in 'api_key_env: MY_KEY'; "
            "what was found is no such name and is not shown"
        )
    return value


def _profile(text: object, info: ValidationInfo) -> StepProfile | None:
    return None if text is None else read_profile(existing_file(text, info))


def _headers(value: object) -> dict[str, str] | None:
    """Return the headers of every request; no error repeats a value, which may be a secret."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping from header names to values")  # noqa: TRY004 - pydantic takes no other
    return checked_headers(value)


def _lora(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    return checked_lora({name: positive_share(share) for name, share in value.items()})


def _verify_tls(value: object, info: ValidationInfo) -> bool | str | None:
    words = {"on": True, "off": False}
    if value is None or isinstance(value, bool) or value in words:
        return words[value] if isinstance(value, str) else value
    return str(existing_file(value, info))


class Engine(Form):
    """One engine of the sweep; the embedded one needs no more than its name."""

    engine: Annotated[str, AfterValidator(_known_engine)]
    label: Name | None = None
    runtime: RuntimeForm | None = None
    extra_args: Annotated[tuple[Text, ...], Field(strict=False)] | None = None
    env: dict[str, Text] | None = None
    start_timeout: SomeTime | None = None
    url: Text | None = None
    model: Text | None = None
    model_check: bool | None = None
    metrics_urls: Annotated[tuple[Text, ...], Field(strict=False, min_length=1)] | None = None
    profile: Annotated[StepProfile | None, PlainValidator(_profile)] = None
    api_key_env: Annotated[str | None, BeforeValidator(_key_variable)] = None
    api: Annotated[str, BeforeValidator(one_of(tuple(API_PATHS)))] | None = None
    request: Annotated[dict[str, Any], AfterValidator(checked_body)] | None = None
    headers: Annotated[dict[str, str] | None, PlainValidator(_headers)] = None
    lora: Annotated[dict[str, float], BeforeValidator(_lora)] | None = None
    verify_tls: Annotated[bool | str | None, PlainValidator(_verify_tls)] = None

    @model_validator(mode="after")
    def _requests_that_are_sent(self) -> Self:
        shaping = ("api", "request", "headers", "lora", "verify_tls")
        given = [name for name in shaping if getattr(self, name) is not None]
        if given and self.engine == EMBEDDED:
            raise ValueError(
                f"{self.engine} runs inside the harness and gets no HTTP requests; leave out "
                f"{' and '.join(given)}"
            )
        if self.verify_tls is not None and not (self.url or "").lower().startswith("https:"):
            raise ValueError("verify_tls has an effect on an https:// url only; leave it out")
        return self

    @model_validator(mode="after")
    def _attached_or_started(self) -> Self:
        attached = self.engine == ATTACHED
        if attached and self.url is None:
            raise ValueError("the key 'url' is missing: where the server is, which runs already")
        of_others = (
            ("runtime", "extra_args", "env")
            if attached
            else ("url", "model", "model_check", "metrics_urls", "api_key_env")
        )
        profile = self.profile
        if profile is not None and self.engine not in (profile.engine, EMBEDDED):
            raise ValueError(f"the profile is one of {profile.engine}, not of {self.engine}")
        given = [name for name in of_others if getattr(self, name) is not None]
        if given:
            why = "is started by somebody else" if attached else "is started here"
            raise ValueError(f"{self.engine} {why}; leave out {' and '.join(given)}")
        return self


def engine_mapping(value: object) -> object:
    """Return an engine that is named alone as the mapping that it stands for."""
    return {"engine": value} if isinstance(value, str) else value

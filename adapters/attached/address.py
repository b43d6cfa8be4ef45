"""The address that a user gives, as the places where the root of an API may be."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from harness.adapters.base import EngineError
from harness.adapters.request_shape import API_PATHS

# What people paste with the root: the address of one route.
_ROUTES = (*sorted(API_PATHS.values(), key=len, reverse=True), "/models")
_VERSION = "/v1"
_LONGEST_LABEL = 63  # characters between two dots of a host's name


@dataclass(frozen=True, slots=True)
class ApiRoot:
    """A place where an API may be: `server` + `path`; `/metrics` and `/health` are at `server`."""

    server: str
    path: str  # /v1, or nothing

    @property
    def url(self) -> str:
        """The address below which `/models` and `/chat/completions` are."""
        return self.server + self.path


def api_roots(url: str) -> tuple[ApiRoot, ...]:
    """Return where the API of `url` may be, the likeliest first: `url` itself, or /v1 after it.

    A trailing slash or route is left out; a path is never cut in its middle. An address without a
    path is tried with /v1 first: some servers have routes of another form at their root. Raises
    `EngineError` for what is not the address of a server.
    """
    parts = _checked(url)
    given = parts.path.rstrip("/")
    route = next((route for route in _ROUTES if given.endswith(route)), "")
    given = given.removesuffix(route).rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    if given.endswith(_VERSION):
        return (ApiRoot(origin + given.removesuffix(_VERSION), _VERSION),)
    itself, below = ApiRoot(origin + given, ""), ApiRoot(origin + given, _VERSION)
    return (itself, below) if given or route else (below, itself)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        good = False
    if not good:
        error = EngineError(f"{_shown(url)!r} is no address of a server")
        error.add_note("expected something like http://127.0.0.1:8000")
        raise error
    host = parts.hostname or ""
    if any(len(label) > _LONGEST_LABEL for label in host.split(".")):
        raise EngineError(f"{_shown(url)[:60]!r}…: a part of the host's name is too long")
    if parts.username is not None:
        error = EngineError("the address carries a name or a password, which would be kept")
        error.add_note("give it without what stands before the @")
        raise error
    if parts.query or parts.fragment:
        error = EngineError("the address has a query or a fragment, which no request would carry")
        error.add_note("give it without what stands behind ? or #")
        raise error
    if not url.isascii() or any(sign.isspace() or not sign.isprintable() for sign in url):
        error = EngineError(f"{_shown(url)!r} has characters that no address can carry")
        error.add_note("write them as %20 (of a path) or as xn-- (of a host)")
        raise error
    return parts


def _shown(url: str) -> str:
    """Return what a user gave, without what may be a password before the @."""
    account, sign, rest = url.rpartition("@")
    return f"(not shown)@{rest}"[:200] if account or sign else rest[:200]

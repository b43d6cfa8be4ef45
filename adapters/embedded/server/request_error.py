"""A refused request, as the API writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestError(Exception):
    """A request that is refused: the message, and the rest of the error body of the API."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        kind: str = "BadRequestError",
        status: int = 400,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """Return the error as the API writes it."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}

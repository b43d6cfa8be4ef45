"""The error of a refused request, in the form of the OpenAI API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestError(Exception):
    """The refusal of a request: the message and the other fields of the API's error body."""

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
        """Return the error body in the form of the API."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}

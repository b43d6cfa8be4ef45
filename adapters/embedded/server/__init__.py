"""The embedded engine as an OpenAI-compatible HTTP server in real time."""

from harness.adapters.embedded.server.server import serve

__all__ = [
    "serve",
]

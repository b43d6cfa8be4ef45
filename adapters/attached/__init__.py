"""A server that is already running: used as it is, never started or stopped."""

from harness.adapters.attached.adapter import UrlAdapter, UrlEndpoint
from harness.adapters.attached.server import attach

__all__ = [
    "UrlAdapter",
    "UrlEndpoint",
    "attach",
]

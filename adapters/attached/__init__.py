"""A server that is already running: used as it is, never started or stopped."""

from harness.adapters.attached.adapter import UrlAdapter
from harness.adapters.attached.server import Attached, attach

__all__ = [
    "Attached",
    "UrlAdapter",
    "attach",
]

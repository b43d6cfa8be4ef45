"""The options of the commands; imports nothing heavy, so that --help is fast."""

from harness.commands.arguments.capacity import add_capacity
from harness.commands.arguments.engines import add_engines
from harness.commands.arguments.fit import add_fit
from harness.commands.arguments.load import Once, add_calibrate, add_dialect, add_load, add_serve
from harness.commands.arguments.requests import given_for_requests

__all__ = [
    "Once",
    "add_calibrate",
    "add_capacity",
    "add_dialect",
    "add_engines",
    "add_fit",
    "add_load",
    "add_serve",
    "given_for_requests",
]

"""What each command does."""

from harness.commands.table import command, is_foreseen

__all__ = [
    "command",
    "is_foreseen",
]

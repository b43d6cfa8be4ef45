"""What a server's running totals moved by over one run."""

from __future__ import annotations

from dataclasses import asdict

from harness.adapters import ServerCounters

# Gauges, not totals: their value at the end counts, not the difference over the run.
_GAUGES = frozenset({"peak_running"})


def counter_moves(
    before: ServerCounters, after: ServerCounters
) -> tuple[ServerCounters, tuple[str, ...]]:
    """Return the moves, None for what the server does not count, and remarks on them.

    A counter that comes up in between began at 0. Where none was there before, the totals are those
    of the server's whole life: they show nothing of the run. A total that fell makes all of
    them worthless: the server was restarted, or they are no totals.
    """
    first, last = asdict(before), asdict(after)
    if all(value is None for value in first.values()):
        return ServerCounters(), ()
    moved = {
        name: value if value is None or name in _GAUGES else value - (first[name] or 0)
        for name, value in last.items()
    }
    fell = [name for name, value in moved.items() if value is not None and value < 0]
    if fell:
        text = f"the server's counters went back in the run ({', '.join(fell)}): was it restarted?"
        return ServerCounters(), (f"{text} Nothing is proven by them",)
    return ServerCounters(**moved), ()

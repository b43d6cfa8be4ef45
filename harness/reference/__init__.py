"""A server whose token times are known, and the client measured against it."""

from harness.reference.rungs import ITL_MS, STREAMS, cores, fits, rung

__all__ = [
    "ITL_MS",
    "STREAMS",
    "cores",
    "fits",
    "rung",
]

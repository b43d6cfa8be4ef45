from .rungs import ITL_MS, STREAMS, cores, fits, rung

__all__ = [
    "ITL_MS",
    "STREAMS",
    "cores",
    "fits",
    "rung",
]

"""How many processes offer a run's load."""

from __future__ import annotations

import math
import os

from harness.calibration import latest_calibration
from harness.load.request_set import RequestSet


def worker_count(asked: int | None, request_set: RequestSet) -> int:
    """Return `asked`; where it is None, one, or as many as the calibration asks for.

    A load whose token rate is known beforehand, an open loop, is held against the highest rate at
    which one process was exact on this machine, by `harness calibrate`. Never more than there are
    processors. The same for all arms of a block: they share the request_set.
    """
    if asked is not None:
        return asked
    rate = request_set.output_tokens_per_s
    highest = (latest_calibration() or {}).get("highest_tokens_per_s")
    if rate is None or not highest:
        return 1
    needed: int = math.ceil(rate / highest)
    return max(1, min(needed, os.cpu_count() or 1))

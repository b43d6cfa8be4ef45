"""How many processes send a run's load."""

from __future__ import annotations

import math
import os

from harness.calibration import latest_calibration
from harness.load.request_set import RequestSet


def worker_count(requested: int | None, request_set: RequestSet) -> int:
    """Return `requested`; where it is None, one, or as many as the calibration asks for.

    The token rate of an open loop is known beforehand. It is compared with the highest rate at
    which one process was exact on this machine, by `harness calibrate`. Never more than there are
    processors. The same for all arms of a block: they have one request set.
    """
    if requested is not None:
        return requested
    rate = request_set.output_tokens_per_s
    highest = (latest_calibration() or {}).get("highest_tokens_per_s")
    if rate is None or not highest:
        return 1
    needed: int = math.ceil(rate / highest)
    return max(1, min(needed, os.cpu_count() or 1))

"""The garbage collector, held off where it would stall what is timed, or looks for nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, and not again until the end: a full collection stalls every stream."""
    gc.collect()
    with no_search_for_garbage():
        yield


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Collect nothing until the end.

    On virtual time nothing can stall, but a collector looks through the growing records again and
    again: a run makes no cycles, so it finds nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Look for no garbage among what is there now, all modules above all, until the end.

    Looking through them takes a tenth of a second, as long as hundreds of simulated requests.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

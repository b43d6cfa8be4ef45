"""Context managers that pause the garbage collector, which would delay measured requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, then disable collection until the end: a full collection delays every stream."""
    gc.collect()
    with no_search_for_garbage():
        yield


@contextmanager
def no_search_for_garbage() -> Iterator[None]:
    """Disable garbage collection until the end.

    On virtual time a collection delays nothing, but it scans the growing records again and again. A
    run creates no reference cycles, so it would find nothing.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def only_new_garbage() -> Iterator[None]:
    """Exclude all existing objects, mainly modules, from garbage collection until the end.

    Scanning them takes a tenth of a second, as long as hundreds of simulated requests.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()

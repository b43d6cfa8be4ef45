"""Tests that the garbage collector is paused and enabled again."""

from __future__ import annotations

import gc

from harness.timing.garbage import no_search_for_garbage, only_new_garbage


def test_existing_objects_are_not_scanned_until_the_end() -> None:
    """Existing objects are frozen inside the block and released after it."""
    with only_new_garbage():
        inside = gc.get_freeze_count()

    assert inside > 1000
    assert gc.get_freeze_count() == 0


def test_nothing_is_collected_inside() -> None:
    """The collector is disabled inside the block and enabled after it."""
    with no_search_for_garbage():
        inside = gc.isenabled()

    assert (inside, gc.isenabled()) == (False, True)

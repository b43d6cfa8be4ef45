"""The collector is held off, or kept from what stays, and let go again."""

from __future__ import annotations

import gc

from harness.timing.garbage import no_search_for_garbage, only_new_garbage


def test_what_is_there_is_looked_through_no_more_until_the_end() -> None:
    """It is looked through again afterwards."""
    with only_new_garbage():
        inside = gc.get_freeze_count()

    assert inside > 1000
    assert gc.get_freeze_count() == 0


def test_nothing_is_collected_inside() -> None:
    """And the collector works again behind it."""
    with no_search_for_garbage():
        inside = gc.isenabled()

    assert (inside, gc.isenabled()) == (False, True)

"""Progress of a start: it is told often enough, and no item of a loop is lost."""

from __future__ import annotations

import pytest

from topics.storage.start_progress import ITEMS, StartProgress


@pytest.mark.parametrize(("count", "reports"), [(0, 0), (9, 0), (10, 1), (35, 3)])
def test_a_loop_gives_every_item_and_shows_life_after_so_many(count: int, reports: int) -> None:
    told: list[float] = []
    assert [*StartProgress(told.append).over(range(count), 10)] == [*range(count)]
    assert len(told) == reports


def test_life_is_shown_between_the_items_and_not_when_all_are_done() -> None:
    told: list[float] = []
    steps = [len(told) for _ in StartProgress(told.append).over(range(3 * ITEMS))]
    assert (steps[ITEMS - 2], steps[ITEMS - 1], steps[-1]) == (0, 1, 3)


def test_a_sign_of_life_tells_the_same_share_again() -> None:
    told: list[float] = []
    progress = StartProgress(told.append)
    progress.beat()
    progress.tell(0.25)
    progress.beat()
    progress.tell(0.5)
    [*progress.over("ab", 1)]
    assert told == [0.0, 0.25, 0.25, 0.5, 0.5, 0.5]

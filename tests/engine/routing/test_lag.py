"""Router lag: live records past a cursor, and the age of the oldest. `topic_machine_picks` compares
it with a list of records.
"""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk
from tests.engine.transcript_shell import Shell
from topics.engine.losses import trim_to
from topics.engine.removal import delete_runs
from topics.engine.routing.lag import lag
from topics.engine.store import Unreadable
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRange, SeqRun


def filled(*writes: int) -> Desk:
    """Topic ``a`` with so many records in each write, a second apart."""
    desk = Desk()
    desk.put("a")
    for count in writes:
        desk.append("a", *range(count))
        desk.later(1000)
    desk.commit()
    return desk


def lag_of(desk: Desk, cursor: int) -> tuple[int, int]:
    return lag(desk.engine.topic("a"), desk, cursor, desk.now.ts)


def test_lag_is_what_is_past_the_cursor() -> None:
    desk = filled(2, 3, 1)
    assert [lag_of(desk, cursor) for cursor in range(8)] == [
        *((6, 3000), (5, 3000), (4, 2000), (3, 2000), (2, 2000), (1, 1000)),
        *((0, 0), (0, 0)),
    ]


def test_what_was_deleted_or_lost_does_not_count() -> None:
    desk = filled(2, 3, 2, 2)
    topic = desk.engine.topic("a")
    delete_runs(topic, [SeqRun(2, 5), SeqRun(9, 1)], desk)
    trim_to(topic, SeqRange(10, 12))
    assert [lag_of(desk, cursor) for cursor in (0, 1, 4, 7, 8)] == [
        *((3, 4000), (2, 2000), (2, 2000), (1, 1000), (0, 0)),
    ]
    assert lag_of(desk, 12) == (0, 0)


def test_a_clock_that_went_back_makes_no_age() -> None:
    desk = filled(1)
    desk.later(-5000)
    assert lag_of(desk, 0) == (1, 0)


def test_records_of_an_extent_have_their_own_times() -> None:
    shell = Shell()
    for line in ("append a one", "wait 10", "append a two", "wait 10", "seal", "delete a before=2"):
        shell.answer(line)
    topic = shell.world.engine.topic("a")
    assert lag(topic, shell.world, 0, shell.now.ts) == (1, 10)


def test_of_what_cannot_be_read_lag_is_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell()
    for line in ("append a one two three four", "append a five", "wait 10", "seal"):
        shell.answer(line)
    world, topic = shell.world, shell.world.engine.topic("a")
    delete_runs(topic, [SeqRun(2, 1)], world)

    def unreadable(_: int) -> RecordsView:
        raise Unreadable

    monkeypatch.setattr(world, "records", unreadable)
    assert lag(topic, world, 0, shell.now.ts) == (4, 10)
    monkeypatch.setattr(world, "delete_flags", unreadable)
    assert lag(topic, world, 0, shell.now.ts) == (4, 10)
    assert lag(topic, world, 3, shell.now.ts) == (2, 10)

"""Router lag: live records past a cursor, and the age of the oldest. `topic_machine_picks` compares
it with a list of records.
"""

from __future__ import annotations

from random import Random

import pytest

from tests.engine.transcript_shell import Shell
from topics.engine.removal import delete_runs
from topics.engine.routing.derivations import (
    Derivation,
    derivation_of,
    forget_derivations,
    note_derivation,
)
from topics.engine.routing.hops import Hops
from topics.engine.routing.lag import lag
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import SeqRun


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


# Derivations: how far the routers of a dest have come


@pytest.fixture
def topic() -> Topic:
    return Topic(1, "a", 1, TopicConfig())


def test_a_router_stands_where_it_was_noted_last(topic: Topic) -> None:
    note_derivation(topic, 3, Derivation(12, 2))
    note_derivation(topic, 4, Derivation(5, 1))
    note_derivation(topic, 3, Derivation(13, 3))
    assert derivation_of(topic, 3, start_seq=9) == (13, 3)
    assert derivation_of(topic, 4, start_seq=9) == (5, 1)


def test_routers_that_are_gone_are_forgotten(topic: Topic) -> None:
    forget_derivations(topic, ())
    note_derivation(topic, 3, Derivation(12, 2))
    note_derivation(topic, 4, Derivation(5, 1))
    forget_derivations(topic, (4, 5))
    assert topic.derivations == {4: (5, 1)}
    forget_derivations(topic, ())
    assert topic.derivations is None


# Hops


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges_are_known_as_a_list_knows_them(seed: int) -> None:
    rng, hops, known, seq = Random(seed), Hops(), dict.fromkeys(range(200), 0), 0
    for _ in range(rng.randrange(20)):
        first = seq + rng.choice([1, 1, 2, 5])
        seq, hop = first + rng.randrange(4), rng.randrange(3)
        hops.note(first, seq, hop)
        known.update(dict.fromkeys(range(first, seq + 1), hop))
        if rng.random() < 0.2:
            floor = rng.randrange(seq + 3)
            hops.drop_to(floor)
            known.update(dict.fromkeys(range(floor + 1), 0))
            seq = max(seq, floor)
    for asked in range(150):
        hop, last = hops.at(asked)
        assert hop == known[asked]
        assert {known[each] for each in range(asked, min(last, 199) + 1)} == {hop}
        assert last >= 199 or known[last + 1] != hop

"""How far a session goes back for a client, without a server."""

from __future__ import annotations

import pytest

from topics.engine.access import ANYONE
from topics.formats.watch import MAP_TOPICS, View, decode_id
from topics.front.watch import MAPS_KEPT, MOVES_KEPT, Session

TOPICS = [f"t{number}" for number in range(MAP_TOPICS + 1)]


def many() -> Session:
    return Session("wid", ANYONE, View(), 15.0, dict.fromkeys(TOPICS, (0, 1)))


def walk(session: Session, frames: int) -> list[tuple[bytes, dict[str, int]]]:
    """Move its topics in turn: every id with the map that it stands for."""
    told = []
    for number in range(frames):
        topic = TOPICS[number % len(TOPICS)]
        session.move(topic, session.cursors[topic][0] + 1, 1)
        told.append((session.id(), seqs(session)))
    return told


def seqs(session: Session) -> dict[str, int]:
    return {topic: seq for topic, (seq, _) in session.cursors.items()}


def test_an_id_of_many_topics_is_short_and_leads_back_to_its_map() -> None:
    session = many()
    told = walk(session, 200)
    assert all(isinstance(decode_id(id_), int) for id_, _ in told)
    for id_, known in reversed(told):
        session.rewind(id_)
        assert seqs(session) == known


@pytest.mark.parametrize("frames", [MOVES_KEPT + 1, 3 * MOVES_KEPT, (MAPS_KEPT + 5) * MOVES_KEPT])
def test_however_old_an_id_is_nothing_that_followed_it_is_left_out(frames: int) -> None:
    session = many()
    told = walk(session, frames)
    for id_, known in (told[-MOVES_KEPT // 2], told[len(told) // 2], told[MOVES_KEPT // 2], told[0]):
        session.rewind(id_)
        assert all(seq <= known[topic] for topic, seq in seqs(session).items())
    assert len(session.maps) <= MAPS_KEPT


def test_no_id_leads_forward() -> None:
    session = many()
    (id_, _) = walk(session, 100)[-1]
    session.rewind(walk(many(), 50)[-1][0])
    before = seqs(session)
    session.rewind(id_)
    assert seqs(session) == before

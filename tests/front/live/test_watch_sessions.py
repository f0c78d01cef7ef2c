"""How far an id takes a watch session back, without a server."""

from __future__ import annotations

import pytest

from topics.engine.access import ANYONE
from topics.formats.api.event_ids import MAP_MAX_TOPICS, decode_id
from topics.formats.api.watch import View
from topics.front.live.watch_sessions import MAPS_KEPT, MOVES_KEPT, WatchSession

TOPICS = [f"t{number}" for number in range(MAP_MAX_TOPICS + 1)]


def many() -> WatchSession:
    return WatchSession("wid", ANYONE, View(), 15.0, dict.fromkeys(TOPICS, (0, 1)))


def walk(session: WatchSession, frames: int) -> list[tuple[bytes, dict[str, int]]]:
    """Move its topics in turn: every id with the map that it stands for."""
    told = []
    for number in range(frames):
        topic = TOPICS[number % len(TOPICS)]
        session.move(topic, session.cursors[topic][0] + 1, 1)
        told.append((session.id(), seqs(session)))
    return told


def seqs(session: WatchSession) -> dict[str, int]:
    return {topic: seq for topic, (seq, _) in session.cursors.items()}


def test_an_id_of_many_topics_is_a_number_that_leads_back_to_its_map() -> None:
    session = many()
    told = walk(session, 200)
    assert all(isinstance(decode_id(id_), int) for id_, _ in told)
    for id_, known in reversed(told):
        session.rewind(id_)
        assert seqs(session) == known


@pytest.mark.parametrize(
    "frames",
    [
        MOVES_KEPT + 1,
        3 * MOVES_KEPT,
        pytest.param((MAPS_KEPT + 5) * MOVES_KEPT, marks=pytest.mark.slow),
    ],
)
def test_an_id_of_any_age_leads_back_to_its_cursors_or_below(frames: int) -> None:
    session = many()
    told = walk(session, frames)
    for id_, known in (
        told[-MOVES_KEPT // 2],
        told[len(told) // 2],
        told[MOVES_KEPT // 2],
        told[0],
    ):
        session.rewind(id_)
        assert all(seq <= known[topic] for topic, seq in seqs(session).items())
    assert len(session.maps) <= MAPS_KEPT


def test_an_id_never_leads_forward() -> None:
    session = many()
    (id_, _) = walk(session, 100)[-1]
    session.rewind(walk(many(), 50)[-1][0])
    before = seqs(session)
    session.rewind(id_)
    assert seqs(session) == before


def made_again() -> WatchSession:
    """It was shown a topic up to 3, and then another one of that name."""
    session = WatchSession("wid", ANYONE, View(), 15.0, {"t": (0, 1)})
    for seq, epoch in ((3, 1), (0, 2), (2, 2), (5, 2)):
        session.move("t", seq, epoch)
    return session


def id_of(seq: int) -> bytes:
    return WatchSession("wid", ANYONE, View(), 15.0, {"t": (seq, 1)}).id()


@pytest.mark.parametrize("seq", [1, 3])
def test_an_id_from_before_a_topic_was_recreated_leads_back_to_the_old_one(seq: int) -> None:
    """The new one's tombstone and its first records may not have reached the client."""
    session = made_again()
    session.rewind(id_of(seq))
    assert session.cursors == {"t": (seq, 1)}


@pytest.mark.parametrize(
    ("seq", "cursor"), [(0, (0, 2)), (2, (2, 2)), (4, (4, 2)), (5, (5, 2)), (6, (5, 2))]
)
def test_an_id_from_after_a_topic_was_recreated_leads_back_within_the_new_one(
    seq: int, cursor: tuple[int, int]
) -> None:
    session = made_again()
    session.rewind(id_of(seq))
    assert session.cursors == {"t": cursor}


def test_an_id_from_two_incarnations_ago_does_not_lead_into_the_current_one() -> None:
    session = made_again()
    session.move("t", 0, 3)
    session.move("t", 9, 3)
    session.rewind(id_of(4))
    assert session.cursors["t"][1] != 3
    session = made_again()
    session.move("t", 0, 3)
    session.move("t", 1, 3)
    session.rewind(id_of(3))
    assert session.cursors["t"][1] != 3


def test_unsent_cursors_of_the_old_topic_lead_back_to_the_old_topic() -> None:
    session = made_again()
    session.unsent = {"t": (3, 1)}
    session.resume(b"")
    assert session.cursors == {"t": (3, 1)}
    session.resume(id_of(2))
    assert session.cursors == {"t": (2, 1)}


@pytest.mark.parametrize(
    ("id_", "seq"),
    [
        (id_of(4), 4),
        (id_of(9), 5),
        (b"", 3),
        (b"garbage", 3),
        (WatchSession("wid", ANYONE, View(), 15.0, {"u": (1, 1)}).id(), 3),
    ],
)
def test_what_was_not_sent_whole_is_taken_back_unless_the_id_names_the_topic(
    id_: bytes, seq: int
) -> None:
    session = WatchSession("wid", ANYONE, View(), 15.0, {"t": (0, 1)})
    session.move("t", 5, 1)
    session.unsent = {"t": (3, 1)}
    session.resume(id_)
    assert session.cursors == {"t": (seq, 1)}
    session.resume(b"")
    assert session.cursors == {"t": (seq, 1)}, "once"


def test_a_checkpoint_from_before_a_topic_was_recreated_leads_back_to_the_old_one() -> None:
    session = many()
    session.move("t0", 7, 1)
    id_ = session.id()
    for seq in (0, 4):
        session.move("t0", seq, 2)
    later = session.id()
    session.move("t0", 9, 2)
    session.rewind(later)
    assert session.cursors["t0"] == (4, 2)
    session.rewind(id_)
    assert session.cursors["t0"] == (7, 1)


def test_a_checkpoint_with_a_whole_map_leads_back_to_the_old_topic_too() -> None:
    session = many()
    walk(session, 3)
    id_ = session.id()
    walk(session, 2 * MOVES_KEPT)
    session.move("t0", 0, 2)
    session.rewind(id_)
    assert session.cursors["t0"] == (0, 1)

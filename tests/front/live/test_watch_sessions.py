"""The cursors to which an event id rewinds a watch session, without a server."""

from __future__ import annotations

import base64

import pytest

from topics.engine.access import ANYONE
from topics.formats.api.watch import ID_MAX_BYTES, MAP_MAX_TOPICS, View, decode_id, encode_id
from topics.front.live.watch_sessions import MAPS_MAX, MOVES_MAX, WatchSession

TOPICS = [f"t{number}" for number in range(MAP_MAX_TOPICS + 1)]


def many() -> WatchSession:
    return WatchSession("wid", ANYONE, View(), 15.0, dict.fromkeys(TOPICS, (0, 1)))


def advance_topics(session: WatchSession, frames: int) -> list[tuple[bytes, dict[str, int]]]:
    """Advance the topics of a session one after another. Return each id with the cursors that it
    encodes.
    """
    ids = []
    for number in range(frames):
        topic = TOPICS[number % len(TOPICS)]
        session.move(topic, session.cursors[topic][0] + 1, 1)
        ids.append((session.id(), seqs(session)))
    return ids


def seqs(session: WatchSession) -> dict[str, int]:
    return {topic: seq for topic, (seq, _) in session.cursors.items()}


def test_an_id_of_many_topics_is_a_number_that_rewinds_to_its_cursors() -> None:
    session = many()
    ids = advance_topics(session, 200)
    assert all(isinstance(decode_id(id_), int) for id_, _ in ids)
    for id_, known in reversed(ids):
        session.rewind(id_)
        assert seqs(session) == known


@pytest.mark.parametrize(
    "frames",
    [
        MOVES_MAX + 1,
        3 * MOVES_MAX,
        pytest.param((MAPS_MAX + 5) * MOVES_MAX, marks=pytest.mark.slow),
    ],
)
def test_an_id_of_any_age_rewinds_to_its_cursors_or_below(frames: int) -> None:
    session = many()
    ids = advance_topics(session, frames)
    for id_, known in (
        ids[-MOVES_MAX // 2],
        ids[len(ids) // 2],
        ids[MOVES_MAX // 2],
        ids[0],
    ):
        session.rewind(id_)
        assert all(seq <= known[topic] for topic, seq in seqs(session).items())
    assert len(session.maps) <= MAPS_MAX


def test_an_id_never_advances_a_cursor() -> None:
    session = many()
    (id_, _) = advance_topics(session, 100)[-1]
    session.rewind(advance_topics(many(), 50)[-1][0])
    before = seqs(session)
    session.rewind(id_)
    assert seqs(session) == before


def recreated_session() -> WatchSession:
    """Return a session that has sent a topic up to 3, and then the recreated topic up to 5."""
    session = WatchSession("wid", ANYONE, View(), 15.0, {"t": (0, 1)})
    for seq, epoch in ((3, 1), (0, 2), (2, 2), (5, 2)):
        session.move("t", seq, epoch)
    return session


def id_of(seq: int) -> bytes:
    return WatchSession("wid", ANYONE, View(), 15.0, {"t": (seq, 1)}).id()


@pytest.mark.parametrize("seq", [1, 3])
def test_an_id_from_before_a_recreation_rewinds_to_the_old_topic(seq: int) -> None:
    """The client may not have received the tombstone and the first records of the new topic."""
    session = recreated_session()
    session.rewind(id_of(seq))
    assert session.cursors == {"t": (seq, 1)}


@pytest.mark.parametrize(
    ("seq", "cursor"), [(0, (0, 2)), (2, (2, 2)), (4, (4, 2)), (5, (5, 2)), (6, (5, 2))]
)
def test_an_id_from_after_a_recreation_rewinds_within_the_new_topic(
    seq: int, cursor: tuple[int, int]
) -> None:
    session = recreated_session()
    session.rewind(id_of(seq))
    assert session.cursors == {"t": cursor}


def test_an_id_from_two_incarnations_ago_does_not_rewind_within_the_current_one() -> None:
    session = recreated_session()
    session.move("t", 0, 3)
    session.move("t", 9, 3)
    session.rewind(id_of(4))
    assert session.cursors["t"][1] != 3
    session = recreated_session()
    session.move("t", 0, 3)
    session.move("t", 1, 3)
    session.rewind(id_of(3))
    assert session.cursors["t"][1] != 3


def test_unsent_cursors_of_the_old_topic_rewind_to_the_old_topic() -> None:
    session = recreated_session()
    session.unsent = {"t": [(3, 1), (0, 2), (2, 2)]}
    session.resume(b"")
    assert session.cursors == {"t": (3, 1)}
    session.resume(id_of(2))
    assert session.cursors == {"t": (2, 1)}


@pytest.mark.parametrize(
    ("id_", "seq"),
    [
        (id_of(2), 2),
        (id_of(3), 3),
        (id_of(5), 5),
        (id_of(7), 7),
        (b"", 3),
        (b"garbage", 3),
        *[(encode_id({"u": 1}), 3), (encode_id({"t": -1}), 3)],
        # Ids that this session has not sent
        *[(id_of(4), 3), (id_of(6), 3), (id_of(8), 3), (id_of(2**64), 3)],
        *[(base64.urlsafe_b64encode(digits).rstrip(b"="), 3) for digits in (b"0", b"1", b"9" * 19)],
    ],
)
def test_partly_sent_events_are_sent_again_unless_an_id_confirms_them(id_: bytes, seq: int) -> None:
    session = WatchSession("wid", ANYONE, View(), 15.0, {"t": (0, 1)})
    for at in (3, 5, 7):
        session.move("t", at, 1)
    session.unsent = {"t": [(3, 1), (5, 1)]}
    session.resume(id_)
    assert session.cursors == {"t": (seq, 1)}
    session.resume(b"")
    assert session.cursors == {"t": (seq, 1)}, "the second resume rewound again"


def test_an_id_of_the_old_topic_does_not_confirm_partly_sent_events() -> None:
    for last, unsent, id_, cursor in (
        (9, [(3, 1), (0, 2), (2, 2)], id_of(1), (1, 1)),
        (9, [(3, 1), (0, 2), (2, 2)], id_of(2), (2, 2)),
        (9, [(3, 1), (0, 2), (2, 2)], id_of(4), (3, 1)),
        (5, [(0, 2), (2, 2)], id_of(3), (3, 1)),
        (5, [(0, 2), (2, 2)], id_of(4), (0, 2)),
        (5, [(0, 2), (2, 2)], id_of(5), (5, 2)),
    ):
        session = recreated_session()
        if last == 9:
            session.move("t", 9, 2)
        session.unsent = {"t": unsent}
        session.resume(id_)
        assert session.cursors["t"] == cursor


def test_a_checkpoint_that_was_never_sent_does_not_confirm_partly_sent_events() -> None:
    session = many()
    for id_, seq in ((b"MTAw", 1), (session.id(), 0)):
        for at in (1, 2):
            session.move("t0", at, 1)
        session.unsent = {"t0": [(1, 1)]}
        session.resume(id_)
        assert session.cursors["t0"] == (seq, 1)


def test_an_id_is_a_map_if_that_is_short_and_otherwise_a_number() -> None:
    names = [f"{number:02}".ljust(35, "n") for number in range(MAP_MAX_TOPICS)]
    session = WatchSession("wid", ANYONE, View(), 15.0, dict.fromkeys(names, (0, 1)))
    ids = []
    for digits in range(1, 20):
        for name in names:
            session.move(name, 10**digits, 1)
        ids.append((session.id(), seqs(session)))
    assert max(len(id_) for id_, _ in ids) <= ID_MAX_BYTES
    assert {type(decode_id(id_)) for id_, _ in ids} == {dict, int}
    for id_, known in reversed(ids):
        session.resume(id_)
        assert seqs(session) == known


def test_a_checkpoint_from_before_a_recreation_rewinds_to_the_old_topic() -> None:
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


def test_a_checkpoint_with_a_complete_map_also_rewinds_to_the_old_topic() -> None:
    session = many()
    advance_topics(session, 3)
    id_ = session.id()
    advance_topics(session, 2 * MOVES_MAX)
    session.move("t0", 0, 2)
    session.rewind(id_)
    assert session.cursors["t0"] == (1, 1)

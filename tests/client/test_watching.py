"""Watches without a server: their requests, events and positions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from topics.client.errors import Refused, TopicsError, Unavailable
from topics.client.values import CaughtUp, Record, Tombstone, TopicDeleted, TopicState
from topics.client.watching import TAIL, PositionedEvent, Progress, WatchState
from topics.formats.api.watch import CursorsId, decode_cursors

GAP: dict[str, Any] = {
    "gap_from": 1,
    "gap_to": 3,
    "reason": "cap",
    "missed_estimate": 3,
    "earliest_seq": 4,
}


def id_of(**cursors: tuple[int, int]) -> str:
    return CursorsId(cursors).text().decode()


def records(topic: str, *seqs: int) -> str:
    shown = [{"$seq": seq, "$ts": 1, "data": seq} for seq in seqs]
    return json.dumps({"topic": topic, "records": shown, "to_seq": seqs[-1]})


def state(name: str, head_seq: int) -> TopicState:
    at: dict[str, Any] = {"head_seq": head_seq, "earliest_seq": 1, "next_seq": head_seq + 1}
    return TopicState(
        name=name, type="log", count=0, bytes=0, epoch=7, config={}, effective_priority=0, **at
    )


def test_topics_with_the_same_start_position_are_requested_in_the_query() -> None:
    path, headers = WatchState(["a", "b"], None, {}).request()
    assert path.startswith("/v0/watch?topic=a&topic=b&")
    assert path.endswith("from_seq=0")
    assert headers == {}
    path, _ = WatchState([("a", TAIL), ("b", TAIL)], "me", {}).request()
    assert path.endswith("node=me&tail=true")
    assert WatchState([("a", 5)], None, {}).request()[0].endswith("from_seq=5")


def test_different_start_positions_are_encoded_in_an_event_id() -> None:
    watching = WatchState([("a", 5), ("b", TAIL), "c", ("d", 99)], None, {"c": (3, 4)})
    assert watching.unknown == ["a", "b", "d"]
    for topic in watching.unknown:
        watching.begin(state(topic, 10))
    _, headers = watching.request()
    assert decode_cursors(headers["Last-Event-ID"].encode(), "abcd") == {
        "a": (5, 7),
        "b": (10, 7),
        "c": (3, 4),
        "d": (99, 0),  # the server reports that the topic was recreated
    }


def test_a_watch_resumes_at_the_first_event_id_that_it_received() -> None:
    watching = WatchState([("a", TAIL)], None, {})
    assert [*watching.take("message", "", id_of(a=(10, 7)))] == []
    assert watching.request()[1] == {"Last-Event-ID": id_of(a=(10, 7))}


def test_a_position_advances_with_the_events_that_the_caller_received() -> None:
    watching = WatchState(["a", "b"], None, {})
    [*watching.take("message", "", id_of(a=(0, 7), b=(0, 8)))]
    shown = [*watching.take("record", records("a", 4, 5), id_of(a=(6, 7), b=(0, 8)))]
    # the last cursor also passes the hidden records
    assert [each.cursor for each in shown] == [(4, 7), (6, 7)]
    assert all(isinstance(each.event, Record) and each.event.topic == "a" for each in shown)
    assert watching.cursors == {"a": (0, 7), "b": (0, 8)}
    watching.done(shown[0])
    assert watching.cursors == {"a": (4, 7), "b": (0, 8)}
    watching.done(shown[1])
    assert watching.request()[1] == {"Last-Event-ID": id_of(a=(6, 7), b=(0, 8))}


@pytest.mark.parametrize(
    ("name", "data", "event"),
    [
        ("tombstone", {**GAP, "head_seq": 9}, Tombstone(topic="a", head_seq=9, **GAP)),
        ("caught-up", {"head_seq": 9}, CaughtUp(topic="a", head_seq=9)),
        ("topic-deleted", {"head_seq": 9}, TopicDeleted(topic="a", head_seq=9)),
    ],
)
def test_events_other_than_records_are_values_too(
    name: str, data: dict[str, Any], event: object
) -> None:
    watching = WatchState(["a"], None, {})
    payload = json.dumps({"topic": "a", **data})
    assert [*watching.take(name, payload, id_of(a=(3, 7)))] == [PositionedEvent(event, (3, 7))]  # type: ignore[arg-type]


def test_unknown_events_of_a_later_server_version_are_ignored() -> None:
    assert [*WatchState(["a"], None, {}).take("news", "{}", id_of(a=(3, 7)))] == []


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        ({"code": 401, "error": "gone"}, Refused),
        ({"code": 503, "error": "stops"}, Unavailable),
        ({"code": 408, "error": "slow"}, Unavailable),
        ({"code": 500, "error": "bug"}, Unavailable),
        ({"code": 404, "error": "unreadable", "topics": ["a"]}, TopicsError),
    ],
)
def test_an_error_frame_ends_the_stream(frame: dict[str, Any], kind: type[TopicsError]) -> None:
    with pytest.raises(kind, match=frame["error"]):
        WatchState(["a"], None, {}).take("error", json.dumps(frame), "")


def test_a_pressure_event_does_not_end_the_stream() -> None:
    paced = json.dumps({"code": 429, "error": "busy", "retry_after_ms": 5, "topics": ["a"]})
    assert [*WatchState(["a"], None, {}).take("error", paced, "")] == []


def test_a_watch_without_topics_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a topic"):
        WatchState([], None, {})


def test_a_position_that_changes_during_a_save_is_saved_next() -> None:
    progress = Progress()
    progress.shown = PositionedEvent(CaughtUp(topic="a", head_seq=9), (9, 7))
    assert progress.unsaved() is None
    progress.done()
    first = progress.unsaved()
    assert first == {"a": (9, 7)}
    progress.shown = PositionedEvent(CaughtUp(topic="a", head_seq=11), (11, 7))
    progress.done()
    progress.saved(first)
    second = progress.unsaved()
    assert second == {"a": (11, 7)}
    progress.saved(second)
    assert progress.unsaved() is None

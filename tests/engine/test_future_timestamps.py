"""Topics whose `$ts` is ahead of the clock are found, and each is reported once."""

from __future__ import annotations

import pytest

from topics.engine import future_timestamps
from topics.engine.future_timestamps import FUTURE_MIN_MS, FutureTimestamps
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig

TS = 1_000_000_000


def topics(*last_ts: int) -> dict[int, Topic]:
    found = {}
    for number, ts in enumerate(last_ts, 1):
        found[number] = topic = Topic(number, f"t{number}", 1, TopicConfig())
        topic.last_ts = ts
    return found


def test_a_topic_is_reported_once_until_it_is_no_longer_ahead() -> None:
    by_id, watch = topics(TS + FUTURE_MIN_MS, TS + FUTURE_MIN_MS + 1, 0), FutureTimestamps()
    now = Now(TS, 7)
    assert [topic.name for topic in watch.sweep(by_id, now)] == ["t2"]
    assert watch.sweep(by_id, now) == []
    assert watch.found == {2}
    assert watch.sweep(by_id, Now(TS + 1, 8)) == []
    assert watch.found == set()
    assert [topic.name for topic in watch.sweep(by_id, now)] == ["t2"], "the clock was set again"
    del by_id[2]
    assert watch.sweep(by_id, now) == []
    assert watch.found == set()


def test_a_call_checks_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(future_timestamps, "SWEEP_TOPICS", 2)
    by_id, watch = topics(*[TS * 2] * 5), FutureTimestamps()
    counts = [len(watch.sweep(by_id, Now(TS, 7))) for _ in range(4)]
    assert counts == [2, 2, 1, 0]
    assert watch.found == {1, 2, 3, 4, 5}

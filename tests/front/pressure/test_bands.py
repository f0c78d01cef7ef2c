"""What a front keeps of the bands that it hears."""

from __future__ import annotations

import pytest

from topics.engine.priority import NEW_BAND, TOP_BAND
from topics.front.pressure import bands
from topics.front.pressure.bands import Bands


def test_a_topic_has_the_band_that_was_heard_last() -> None:
    known = Bands()
    assert known.of("a") == NEW_BAND
    for band in (TOP_BAND, 0, 3):
        known.learn("a", band)
        assert known.of("a") == band
    assert known.of("b") == NEW_BAND


def test_only_topics_that_differ_from_new_ones_are_kept() -> None:
    known = Bands()
    known.learn("a", NEW_BAND)
    assert len(known) == 0
    known.learn("a", TOP_BAND)
    known.learn("a", NEW_BAND)
    assert len(known) == 0


def test_the_latest_changes_are_kept_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "KEPT_MAX", 3)
    known = Bands()
    for topic in ("a", "b", "c"):
        known.learn(topic, TOP_BAND)
    known.learn("a", 3)
    known.learn("d", TOP_BAND)
    assert [known.of(topic) for topic in "abcd"] == [3, NEW_BAND, TOP_BAND, TOP_BAND]
    assert len(known) == 3

"""Derivations: how far the routers of a dest have come."""

from __future__ import annotations

import pytest

from topics.engine.routing.derivations import (
    Derivation,
    derivation_of,
    forget_derivations,
    note_derivation,
)
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig


@pytest.fixture
def topic() -> Topic:
    return Topic(1, "a", 1, TopicConfig())


def test_a_router_that_has_not_begun_stands_at_its_start(topic: Topic) -> None:
    assert derivation_of(topic, 3, start_seq=9) == (9, 0)


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

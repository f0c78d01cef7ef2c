"""Packed texts: found by prefix, and few references for the interpreter's collector to follow."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import HEADER, plain
from topics.engine.tags import PORTION_TAGS, TagIndex, json_prefix
from topics.formats.disk.packed import PackedTexts
from topics.formats.disk.segment_build import Source, build
from topics.formats.json_text import json_string

TEXTS = 10_000
CLOSE = st.text('ab\\"\n\x1f/é', max_size=3)


@given(st.lists(CLOSE, max_size=80), CLOSE)
def test_packed_texts_are_found_by_prefix(texts: list[str], beginning: str) -> None:
    ordered = sorted(map(json_string, texts))
    packed, prefix = PackedTexts(ordered), json_prefix(beginning)
    assert [*packed] == ordered
    assert packed.starting_with(prefix) == [text for text in ordered if text.startswith(prefix)]


def _followed() -> int:
    """References that a full collection follows."""
    return sum(len(gc.get_referents(each)) for each in gc.get_objects())


def _most_followed(steps: Iterator[object], look: Callable[[int], bool]) -> int:
    """The largest growth of `_followed` after the steps that ``look`` picks."""
    gc.collect()
    before = _followed()
    return max(_followed() - before for count, _ in enumerate(steps) if look(count))


@pytest.mark.slow
def test_the_collector_does_not_follow_tags_of_unsealed_records() -> None:
    index = TagIndex()
    portions = TEXTS // PORTION_TAGS

    def add() -> Iterator[None]:
        for number in range(portions * PORTION_TAGS):
            index.add([(0, b'"tag-%d"' % number)], number)
            yield

    assert _most_followed(add(), lambda count: count == portions * PORTION_TAGS - 1) < 1000


@pytest.mark.slow
def test_the_collector_does_not_follow_tags_of_a_segment_being_built() -> None:
    view = plain(TEXTS, tag="t%d").view(1)
    view.ext()
    steps = build(HEADER, [Source(1, 1, [(view, 0, TEXTS)])])
    assert _most_followed(steps, lambda count: count % 8 == 0) < TEXTS / 2

"""Texts in two objects, and what the interpreter's collector has to follow of those that stay."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from tests.formats.segment_support import HEADER, plain
from topics.engine.tags import PORTION_TAGS, TagIndex
from topics.formats.packed import PackedTexts
from topics.formats.segment_build import Source, build

TEXTS = 10_000


@given(st.lists(st.binary(max_size=20)), st.binary(max_size=3))
def test_they_are_as_they_were_given(texts: list[bytes], other: bytes) -> None:
    packed = PackedTexts(texts)
    assert (len(packed), [*packed], [packed[index] for index in range(len(packed))]) == (len(texts), texts, texts)
    texts.sort()
    assert bisect_left(PackedTexts(texts), other) == bisect_left(texts, other)


def _followed() -> int:
    """References that a collection of everything follows."""
    return sum(len(gc.get_referents(each)) for each in gc.get_objects())


def _most_followed(steps: Iterator[object], look: Callable[[int], bool]) -> int:
    """More than before, at most, after the steps that are looked at."""
    gc.collect()
    before = _followed()
    return max(_followed() - before for count, _ in enumerate(steps) if look(count))


def test_tags_that_are_waiting_for_their_segment_are_not_followed() -> None:
    index = TagIndex()
    portions = TEXTS // PORTION_TAGS

    def add() -> Iterator[None]:
        for number in range(portions * PORTION_TAGS):
            index.add([(0, b'"tag-%d"' % number)], number)
            yield

    assert _most_followed(add(), lambda count: count == portions * PORTION_TAGS - 1) < 1000


def test_nor_are_those_of_a_segment_on_its_way() -> None:
    view = plain(TEXTS, tag="t%d").view(1)
    view.ext()
    steps = build(HEADER, [Source(1, 1, [(view, 0, TEXTS)])])
    assert _most_followed(steps, lambda count: count % 8 == 0) < TEXTS / 2

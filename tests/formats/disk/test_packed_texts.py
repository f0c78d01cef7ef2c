"""Packed texts: found by prefix, and with few references for the garbage collector to follow."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import (
    HEADER,
    build_bytes,
    extents,
    plain,
)
from topics.engine.tags import BLOCK_TAGS, TagIndex, json_prefix
from topics.formats.disk import text_table
from topics.formats.disk.extent_build import check_extent
from topics.formats.disk.packed_texts import PackedTexts
from topics.formats.disk.segment_build import ExtentSource, build
from topics.formats.disk.text_table import TextTable
from topics.formats.json_text import json_string

TEXTS = 10_000
CLOSE = st.text('ab\\"\n\x1f/é', max_size=3)


@given(st.lists(CLOSE, max_size=80), CLOSE)
def test_packed_texts_are_found_by_prefix(texts: list[str], start: str) -> None:
    ordered = sorted(map(json_string, texts))
    packed, prefix = PackedTexts(ordered), json_prefix(start)
    assert [*packed] == ordered
    assert packed.starting_with(prefix) == [text for text in ordered if text.startswith(prefix)]


def _reference_count() -> int:
    """Return the number of references that a full collection follows."""
    return sum(len(gc.get_referents(each)) for each in gc.get_objects())


def _max_reference_growth(steps: Iterator[object], is_measured: Callable[[int], bool]) -> int:
    """Return the largest growth of `_reference_count` after the steps that
    ``is_measured`` selects.
    """
    gc.collect()
    before = _reference_count()
    return max(_reference_count() - before for count, _ in enumerate(steps) if is_measured(count))


@pytest.mark.slow
def test_the_garbage_collector_does_not_follow_tags_of_unsealed_records() -> None:
    index = TagIndex()
    blocks = TEXTS // BLOCK_TAGS

    def add() -> Iterator[None]:
        for number in range(blocks * BLOCK_TAGS):
            index.add([(0, b'"tag-%d"' % number)], number)
            yield

    assert _max_reference_growth(add(), lambda count: count == blocks * BLOCK_TAGS - 1) < 1000


@pytest.mark.slow
def test_the_garbage_collector_does_not_follow_tags_of_a_segment_being_built() -> None:
    view = plain(TEXTS, tag="t%d").view(1)
    view.ext()
    steps = build(HEADER, [ExtentSource(1, 1, [(view, 0, TEXTS)])])
    assert _max_reference_growth(steps, lambda count: count % 8 == 0) < TEXTS / 2


# Text tables: sorted in steps, with matching references


def test_many_tags_are_sorted_across_runs() -> None:
    count = 2 * text_table.RUN_TEXTS + 100
    view = plain(count, tag="t%d").view(1)
    (extent,) = extents(build_bytes([ExtentSource(1, 1, [(view, 0, count)])]))
    assert [*check_extent(extent)] == []
    assert len(extent.tags) == count
    assert [*extent.find_tag(b'"t77"')] == [77]
    assert sorted(extent.find_prefix(b'"t77')) == [
        number for number in range(count) if str(number).startswith("77")
    ]


@given(st.lists(st.sampled_from([b'"a"', b'"ab"', b'"b"', b'"\xc3\xa9"', None]), max_size=40))
def test_refs_and_postings_follow_the_sorted_texts(texts: list[bytes | None]) -> None:
    table = TextTable()
    for count, text in enumerate(texts):
        if text is not None:
            table.add(count, [text], b"\1")
    table.fill(len(texts))
    for _ in table.sort():
        pass
    ordered = sorted({text for text in texts if text is not None})
    assert b"".join(table.parts) == b"".join(ordered)
    assert [ref and ordered[ref - 1] for ref in table.refs] == [text or 0 for text in texts]
    ends, postings = [*table.postings()][-1] if ordered else (b"", b"")
    bounds, indexes = [0, *array("I", ends)], array("I", postings)
    for ref, text in enumerate(ordered):
        found = indexes[bounds[ref] : bounds[ref + 1]]
        assert [*found] == [index for index, each in enumerate(texts) if each == text]

"""Text tables: sorted in steps, and refs that follow."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.segment_support import (
    build_bytes,
    extents,
    plain,
)
from topics.formats.disk import text_table
from topics.formats.disk.segment_build import Source
from topics.formats.disk.segment_check import check_extent
from topics.formats.disk.text_table import TextTable


def test_many_tags_are_sorted_across_runs() -> None:
    count = 2 * text_table.RUN_TEXTS + 100
    view = plain(count, tag="t%d").view(1)
    (extent,) = extents(build_bytes([Source(1, 1, [(view, 0, count)])]))
    assert [*check_extent(extent)] == []
    assert len(extent.tags) == count
    assert [*extent.find_tag(b'"t77"')] == [77]
    assert sorted(extent.find_prefix(b'"t77')) == [
        number for number in range(count) if str(number).startswith("77")
    ]


@given(st.lists(st.sampled_from([b'"a"', b'"ab"', b'"b"', b'"\xc3\xa9"', None]), max_size=40))
def test_refs_and_postings_name_the_texts_in_order(texts: list[bytes | None]) -> None:
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
        named = indexes[bounds[ref] : bounds[ref + 1]]
        assert [*named] == [index for index, each in enumerate(texts) if each == text]

"""The records of one write, reduced to what a reader requests, byte for byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.disk.record_support import (
    RECORDS,
    TEXTS,
    Record,
    expected_record,
    request,
    view_of,
)
from topics.formats.disk.records import RecordFlags, json_nodes
from topics.formats.disk.rendering import encode


def test_the_numbers_of_record_flags_never_change() -> None:
    assert {flag.name: flag.value for flag in RecordFlags} == {
        "NODES": 1,
        "TAGS": 2,
        "METAS": 4,
        "ONE_NODE": 8,
        "EXTERNAL": 16,
        "DELAYS": 32,
    }


# Comparison with a simple model


@given(RECORDS, TEXTS, st.integers(1, 2**63), st.integers(0, 2**50))
def test_a_reader_without_filters_receives_all_records_as_they_were_sent(
    records: list[Record], node: str | None, first_seq: int, ts_ms: int
) -> None:
    view = view_of(request(records, node), first_seq, ts_ms)
    expected = [
        expected_record(record, seq, node, ts_ms=ts_ms)
        for seq, record in enumerate(records, first_seq)
    ]
    assert view.keeps_all(frozenset(), include_tags=True, include_meta=True)
    for start in range(len(records)):
        for stop in range(start + 1, len(records) + 1):
            assert view.slice(start, stop) == b",".join(expected[start:stop])
    assert view.blob == b"".join(record + b"," for record in expected)
    assert [end - begin for begin, end in pairwise([0, *view.ends])] == [
        len(record) + 1 for record in expected
    ]


@given(
    RECORDS,
    TEXTS,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sets(st.sampled_from(["", "a", "b", "é", 'q"\\', "c"])),
    st.booleans(),
    st.data(),
)
def test_filters_remove_exactly_the_unrequested_records_and_members(
    records: list[Record],
    batch_node: str | None,
    tags: bool,
    meta: bool,
    with_data: bool,
    nodes: set[str],
    delayed: bool,
    data: st.DataObject,
) -> None:
    view = view_of(request(records, batch_node), due=[5] * len(records) if delayed else None)
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    expected = [
        (
            index,
            expected_record(
                record, 7 + index, batch_node, tags=tags, meta=meta, with_data=with_data
            ),
        )
        for index, record in enumerate(records)
        if start <= index < stop
        and (record[0] if record[0] is not None else batch_node) not in nodes
    ]
    assert view.select(start, stop, json_nodes(nodes), tags, meta, None, with_data) == expected
    if view.keeps_all(json_nodes(nodes), tags, meta, with_data):
        assert view.slice(start, stop) == b",".join(record for _, record in expected)


@given(RECORDS, TEXTS, st.data())
def test_delays_do_not_change_the_records_of_a_reader(
    records: list[Record], node: str | None, data: st.DataObject
) -> None:
    count = len(records)
    due = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    body = request(records, node, key="k")
    view, plain = view_of(body, due=due, keep_key=True), view_of(body, keep_key=True)
    assert (view.delays(), plain.delays()) == (due if any(due) else [], [])
    assert view.flags == plain.flags | (RecordFlags.DELAYS if any(due) else 0)
    assert {**view.ext(), "d": 0} == {**plain.ext(), "d": 0}
    assert view.blob == plain.blob
    assert [*view.ends] == [*plain.ends]
    assert [*view.tagged(0, count)] == [*plain.tagged(0, count)]
    assert [view.ts(index) for index in range(count)] == [1000] * count


@given(RECORDS, st.data())
def test_a_byte_budget_is_filled_and_not_exceeded(
    records: list[Record], data: st.DataObject
) -> None:
    view = view_of(request(records))
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start, len(records)))
    budget = data.draw(st.integers(0, 2000))
    sizes = [
        len(expected_record(record, 7 + index, None)) + 1 for index, record in enumerate(records)
    ]
    expected = start
    while expected < stop and sum(sizes[start : expected + 1]) <= budget:
        expected += 1
    assert view.fit(start, stop, budget) == expected


@pytest.mark.parametrize("has_nodes", ["none", "one", "some"])
@pytest.mark.parametrize("has_tags", [True, False])
@pytest.mark.parametrize("has_meta", [True, False])
def test_records_are_reduced_only_if_a_reader_requests_it(
    has_nodes: str, has_tags: bool, has_meta: bool
) -> None:
    node = None if has_nodes == "none" else "n"
    tag, meta = "t" if has_tags else None, b"{}" if has_meta else None
    view = view_of(
        request([(node, tag, b"1", meta), (None if has_nodes == "some" else node, tag, b"2", meta)])
    )
    for tags in (True, False):
        for metas in (True, False):
            for nodes in (frozenset[str](), frozenset({"other"})):
                unchanged = (
                    (tags or not has_tags)
                    and (metas or not has_meta)
                    and (not nodes or has_nodes == "none")
                )
                assert view.keeps_all(json_nodes(nodes), tags, metas) == unchanged


@given(RECORDS, TEXTS, st.data())
def test_records_are_taken_with_their_end_offsets(
    records: list[Record], node: str | None, data: st.DataObject
) -> None:
    view = view_of(request(records, node))
    start = data.draw(st.integers(0, view.count - 1))
    stop = data.draw(st.integers(start + 1, view.count))
    taken, ends = view.taken(start, stop)
    assert taken == bytes(view.slice(start, stop)) + b","
    assert [taken[begin:end] for begin, end in zip([0, *ends], ends, strict=False)] == [
        bytes(view.slice(index, index + 1)) + b"," for index in range(start, stop)
    ]


@given(RECORDS, TEXTS, st.sampled_from([None, "k"]), st.booleans())
def test_texts_and_tables_equal_those_of_a_write_without_key_and_delays(
    records: list[Record], node: str | None, key: str | None, delayed: bool
) -> None:
    due = [5] * len(records) if delayed else None
    view = view_of(request(records, node, key), keep_key=True, due=due)
    bare = encode(request(records, node), 7, 1000, keep_key=False)
    assert view.texts_and_tables() == (bare.ext, [*bare.parts[2:-1]])
    nodes, tags = view.texts()
    assert (nodes, tags) == (view.ext().get("n", ()), view.ext().get("t", ()))
    sent = encode(request(records, node, key), 7, 1000, keep_key=True, due=due)
    assert view.length == len(b"".join(sent.parts))

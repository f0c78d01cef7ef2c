"""How records are split into appends, and the idempotency keys of these chunks."""

from __future__ import annotations

import json
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from topics.client.chunks import Chunk, Chunker, chunk_key
from topics.formats.api.limits import KEY_MAX_CHARS


def block(records: list[bytes]) -> tuple[list[int], memoryview]:
    """Return records in Arrow's layout, between bytes of other columns."""
    return list(accumulate(map(len, records), initial=7)), memoryview(
        b"garbage" + b"".join(records) + b"garbage"
    )


def cut(blocks: list[list[bytes]], max_records: int, max_bytes: int) -> list[Chunk[None]]:
    chunker = Chunker[None](max_records, max_bytes)
    return [chunk for records in blocks for chunk in chunker.cut(*block(records))]


def record(value: object) -> bytes:
    return b'{"data":' + json.dumps(value).encode() + b"},"


def values(chunk: Chunk[None]) -> list[object]:
    return [entry["data"] for entry in json.loads(chunk.records)]


def added(records: list[bytes], max_records: int, max_bytes: int) -> list[Chunk[int]]:
    """Return the chunks of single records that are marked with their numbers."""
    chunker = Chunker[int](max_records, max_bytes)
    chunks = [chunk for number, each in enumerate(records) for chunk in chunker.add(each, number)]
    return [*chunks, *chunker.flush(), *chunker.flush()]


def test_a_chunk_ends_at_the_record_limit() -> None:
    chunks = cut([[record(i) for i in range(10)]], 4, 10**6)
    assert [values(chunk) for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [chunk.number for chunk in chunks] == [0, 1, 2]


def test_a_chunk_ends_before_it_would_exceed_the_byte_limit() -> None:
    size = len(record(0))
    assert [chunk.count for chunk in cut([[record(0)] * 5], 100, 2 * size)] == [2, 2, 1]
    assert [chunk.count for chunk in cut([[record(0)] * 5], 100, 3 * size - 1)] == [2, 2, 1]


def test_a_record_above_the_byte_limit_is_sent_alone() -> None:
    chunks = cut([[record(1), record("x" * 500), record(2)]], 100, 40)
    assert [values(chunk) for chunk in chunks] == [[1], ["x" * 500], [2]]


def test_single_records_keep_their_marks_and_a_full_chunk_is_sent_immediately() -> None:
    chunker = Chunker[str](2, 10)
    assert [*chunker.add(b"12345", "a")] == []
    assert [*chunker.add(b"12345", "b")] == [Chunk(0, 2, b"[12345,12345]", ["a", "b"])]
    assert [*chunker.add(b"1", "c")] == []
    large = [*chunker.add(b"12345678901", "d")]  # sent alone, after the chunk before it
    assert large == [Chunk(1, 1, b"[1]", ["c"]), Chunk(2, 1, b"[12345678901]", ["d"])]
    assert [*chunker.flush()] == []


def test_without_records_there_is_no_chunk() -> None:
    assert added([], 5, 5) == []
    assert cut([], 5, 5) == []
    assert cut([[], []], 5, 5) == []


def test_a_chunk_ends_with_its_block() -> None:
    chunks = cut([[record(1), record(2)], [record(3)]], 10, 1000)
    assert [(chunk.number, values(chunk)) for chunk in chunks] == [(0, [1, 2]), (1, [3])]


@given(
    sizes=st.lists(st.integers(1, 30), max_size=60),
    max_records=st.integers(1, 20),
    max_bytes=st.integers(1, 200),
)
def test_single_records_and_columns_are_split_at_the_same_records(
    sizes: list[int], max_records: int, max_bytes: int
) -> None:
    records = [b"," * size for size in sizes]
    single = added(records, max_records, max_bytes)
    columns = cut([records], max_records, max_bytes)
    assert [chunk.count for chunk in single] == [chunk.count for chunk in columns]
    assert [mark for chunk in single for mark in chunk.marks] == [*range(len(sizes))]


@given(
    texts=st.lists(st.text(max_size=30), max_size=60),
    max_records=st.integers(1, 20),
    max_bytes=st.integers(1, 200),
)
def test_chunks_contain_all_records_in_order_and_respect_the_limits(
    texts: list[str], max_records: int, max_bytes: int
) -> None:
    chunks = cut([[record(text) for text in texts]], max_records, max_bytes)
    assert [value for chunk in chunks for value in values(chunk)] == texts
    assert all(chunk.count <= max_records for chunk in chunks)
    assert all(chunk.count == 1 or len(chunk.records) <= max_bytes + 1 for chunk in chunks)


PLACE = ("batch:job", "flights", 3, 7, 5000, b"body")


def test_the_same_position_and_content_always_give_the_same_key() -> None:
    # A golden value: if it changed, every repeated job would append its records to existing topics
    # a second time.
    assert chunk_key(*PLACE) == "spark-ab35937f246ec48ed0207e00eb8f985f2797ec9f"


def test_each_part_of_the_position_and_the_content_changes_the_key() -> None:
    others = [
        ("batch:job2", *PLACE[1:]),
        (PLACE[0], "flights2", *PLACE[2:]),
        (*PLACE[:2], 4, *PLACE[3:]),
        (*PLACE[:3], 8, *PLACE[4:]),
        (*PLACE[:4], 4999, PLACE[5]),
        (*PLACE[:5], b"bodz"),
    ]
    keys = {chunk_key(*place) for place in [PLACE, *others]}
    assert len(keys) == len(others) + 1


def test_different_parts_with_the_same_concatenation_give_different_keys() -> None:
    assert chunk_key("a', 'b", "c", 0, 0, 0, b"") != chunk_key("a", "b', 'c", 0, 0, 0, b"")
    assert chunk_key("s", "t", 1, 11, 0, b"") != chunk_key("s", "t", 11, 1, 0, b"")


@given(st.text(), st.text())
def test_a_key_is_short_ascii_text_for_any_names(scope: str, topic: str) -> None:
    key = chunk_key(scope, topic, 2**31, 2**40, 10_000, b"x")
    assert key.isascii()
    assert 0 < len(key) <= KEY_MAX_CHARS

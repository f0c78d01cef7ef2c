"""Where a stream of records is cut into request bodies."""

from __future__ import annotations

import json
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from topics.spark.client.chunks import Chunk, Chunker


def block(records: list[bytes]) -> tuple[list[int], memoryview]:
    """Records as Arrow would lay them out, behind some bytes that belong to nobody."""
    return list(accumulate(map(len, records), initial=7)), memoryview(
        b"garbage" + b"".join(records) + b"garbage"
    )


def cut(
    blocks: list[list[bytes]], max_records: int, max_bytes: int, node: str | None = None
) -> list[Chunk]:
    chunker = Chunker(max_records, max_bytes, node)
    return [chunk for records in blocks for chunk in chunker.cut(*block(records))]


def record(value: object) -> bytes:
    return b'{"data":' + json.dumps(value).encode() + b"},"


def values(chunk: Chunk) -> list[object]:
    return [entry["data"] for entry in json.loads(chunk.body)["records"]]


def test_a_body_is_the_append_request_of_the_contract() -> None:
    (chunk,) = cut([[record({"a": 1}), record(None)]], 10, 1000, node='w"1')
    assert json.loads(chunk.body) == {
        "create": False,
        "node": 'w"1',
        "records": [{"data": {"a": 1}}, {"data": None}],
    }
    assert (chunk.number, chunk.count) == (0, 2)


def test_a_chunk_ends_at_the_record_limit() -> None:
    chunks = cut([[record(i) for i in range(10)]], 4, 10**6)
    assert [values(chunk) for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [chunk.number for chunk in chunks] == [0, 1, 2]


def test_a_chunk_ends_before_the_byte_limit_would_be_passed() -> None:
    size = len(record(0))
    assert [chunk.count for chunk in cut([[record(0)] * 5], 100, 2 * size)] == [2, 2, 1]
    assert [chunk.count for chunk in cut([[record(0)] * 5], 100, 3 * size - 1)] == [2, 2, 1]


def test_a_record_above_the_byte_limit_goes_alone() -> None:
    chunks = cut([[record(1), record("x" * 500), record(2)]], 100, 40)
    assert [values(chunk) for chunk in chunks] == [[1], ["x" * 500], [2]]


def test_no_records_make_no_chunk() -> None:
    assert cut([], 5, 5) == []
    assert cut([[], []], 5, 5) == []


def test_a_chunk_ends_with_its_block() -> None:
    chunks = cut([[record(1), record(2)], [record(3)]], 10, 1000)
    assert [(chunk.number, values(chunk)) for chunk in chunks] == [(0, [1, 2]), (1, [3])]


@given(
    texts=st.lists(st.text(max_size=30), max_size=60),
    max_records=st.integers(1, 20),
    max_bytes=st.integers(1, 200),
)
def test_chunks_have_all_records_in_order_within_the_limits(
    texts: list[str], max_records: int, max_bytes: int
) -> None:
    chunks = cut([[record(text) for text in texts]], max_records, max_bytes)
    assert [value for chunk in chunks for value in values(chunk)] == texts
    assert all(chunk.count <= max_records for chunk in chunks)
    assert all(chunk.count == 1 or len(chunk.body) <= max_bytes + 40 for chunk in chunks)

"""Sinks: the body of a streamed append in memory."""

from __future__ import annotations

from topics.actors.shard.blob_sinks import MemorySink


def test_pieces_are_put_one_behind_the_other() -> None:
    sink = MemorySink(10)
    sink.write([b"ab", memoryview(b"cde")])
    sink.write([])
    sink.write([bytearray(b"fghij")])
    sink.finish()
    assert bytes(sink.body) == b"abcdefghij"


def test_the_memory_of_a_body_is_taken_once_and_as_long_as_the_body() -> None:
    sink = MemorySink(4)
    body = sink.body
    sink.write([b"abcd"])
    sink.finish()
    assert sink.body is body
    assert len(body) == 4

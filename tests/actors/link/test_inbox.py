"""What an end takes out of the ring: arena attachments, releases, and bytes that are damaged."""

from __future__ import annotations

import random

import pytest

from tests.actors.link.link_support import Pair, exchange
from tests.support.wire import encode
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.link.ring import RingDamaged


def test_bytes_that_are_no_message_stop_the_link(pair: Pair) -> None:
    pair.front.link.producer.write(b"\xff" * 24)
    with pytest.raises(RingDamaged, match="no message"):
        pair.shard.turn()


@pytest.mark.parametrize("flags", [2, 4])
@pytest.mark.parametrize("attachment", [b"short", bytes(15) + b"\xff"])
def test_an_arena_reference_to_nothing_stops_the_link(
    pair: Pair, flags: int, attachment: bytes
) -> None:
    pair.front.link.producer.write(encode(1, "", b"", attachment, flags))
    with pytest.raises(RingDamaged, match="no arena block"):
        pair.shard.turn()


def test_a_long_attachment_is_read_in_place_and_its_block_freed_by_the_release(pair: Pair) -> None:
    body = random.Random(1).randbytes(3 * PAGE_BYTES)
    pair.front.link.send("rpc/append", b"p", bytearray(body))
    [frame] = exchange(pair.front, pair.shard)
    assert isinstance(frame.attachment, memoryview)
    assert frame.attachment.readonly
    assert bytes(frame.attachment) == body
    assert pair.front.link.writer.used_bytes == 3 * PAGE_BYTES
    assert pair.shard.link.reader.held == 1
    pair.shard.link.release(frame)
    pair.shard.link.release(frame)
    assert exchange(pair.shard, pair.front) == [], "a RELEASE is the link's own business"
    assert pair.front.link.writer.used_bytes == 0
    assert pair.shard.link.reader.held == 0


def test_releasing_an_inline_attachment_sends_nothing(pair: Pair) -> None:
    pair.front.link.send("a", b"", b"x" * 1000)
    [frame] = exchange(pair.front, pair.shard)
    pair.shard.link.release(frame)
    assert pair.shard.link.backlog_bytes == 0


def test_a_short_view_is_copied_when_it_is_sent(pair: Pair) -> None:
    body = bytearray(b"before")
    pair.front.link.send("a", b"", memoryview(body))
    body[:] = b"after!"
    assert [frame.attachment for frame in exchange(pair.front, pair.shard)] == [b"before"]


def test_a_reserved_block_is_filled_shrunk_and_sent(pair: Pair) -> None:
    block = pair.front.link.reserve(2 * PAGE_BYTES)
    assert block is not None
    block.view[:5] = b"12345"
    block.shrink(5)
    pair.front.link.send("a", b"", block)
    block.free()  # as a `finally` of its holder does
    with pytest.raises(ValueError, match="sent or freed before"):
        pair.front.link.send("a", b"", block)
    [frame] = exchange(pair.front, pair.shard)
    assert bytes(frame.attachment) == b"12345"


def test_when_the_arena_is_full_a_long_attachment_goes_through_the_ring_in_pieces(
    pair: Pair,
) -> None:
    bodies = [random.Random(n).randbytes(10 * PAGE_BYTES) for n in range(3)]
    for body in bodies:
        pair.shard.link.send("r", b"", body)
    assert pair.shard.link.reserve(7 * PAGE_BYTES) is None
    got = exchange(pair.shard, pair.front)
    assert [bytes(frame.attachment) for frame in got] == bodies
    assert [frame.flags for frame in got] == [2, 0, 0]

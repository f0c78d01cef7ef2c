"""The position at which a reader joins its feed, and the events that follow, without a server."""

from __future__ import annotations

import re
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.live_harness import Client, LiveHarness, gap, page, records
from topics.formats.api.watch import decode_id


def seqs(received: bytes) -> list[int]:
    """Return the seqs of the records."""
    return [int(seq) for seq in re.findall(rb'"\$seq":(\d+)', received)]


def gaps(received: bytes) -> list[tuple[int, int]]:
    """Return both ends of the tombstones."""
    return [
        (int(first), int(last))
        for first, last in re.findall(rb'"gap_from":(\d+),"gap_to":(\d+)', received)
    ]


def reasons(received: bytes) -> list[str]:
    """Return the reasons of the tombstones."""
    return [reason.decode() for reason in re.findall(rb'"reason":"(\w+)"', received)]


def ids(received: bytes) -> list[Any]:
    """Return the decoded event ids."""
    return [decode_id(id_) for id_ in re.findall(rb"id: (.+)\n", received)]


async def opened(front: LiveHarness, head_seq: int = 10) -> Client:
    """Return a client at 0 that has requested the records up to its feed's ``head_seq``."""
    client = await front.client()
    await front.answer("feed.open", head_seq=head_seq, earliest_seq=1, epoch=1)
    return client


@pytest.mark.parametrize(("seq", "is_caught_up"), [(7, True), (9, False)])
async def test_only_a_reader_at_the_head_gets_caught_up(
    front: LiveHarness, seq: int, is_caught_up: bool
) -> None:
    """A reader past its feed's position gets no `caught-up`, because newer records may exist."""
    client = await front.client()
    await front.answer("feed.open", head_seq=7, earliest_seq=1, epoch=1)
    await front.answer("feed.read", records(0, seq), **page(0, seq, head_seq=12), epoch=1)
    assert (b"event: caught-up" in client.receive()) is is_caught_up
    assert client.stream.readers["t"].is_live


async def test_a_tail_above_the_synced_records_gets_caught_up_at_its_position(
    front: LiveHarness,
) -> None:
    """Records that existed when the stream started are not synced yet."""
    client = await front.client(11)
    await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
    await front.answer("feed.read", **page(11, 11, head_seq=1), epoch=1)
    assert b'event: caught-up\ndata: {"topic":"t","head_seq":11}' in client.receive()


async def test_a_reader_of_kept_pages_gets_caught_up_after_the_last_one(
    front: LiveHarness,
) -> None:
    """Each of these records was the newest one when it arrived."""
    first = await opened(front, head_seq=1)
    await front.answer("feed.read", records(0, 1), **page(0, 1), epoch=1)
    for seq in (1, 2, 3):
        await front.page(seq, seq + 1)
    assert first.receive().count(b"event: caught-up") == 1
    second = await front.client()
    await front.answer("feed.read", records(0, 1), **page(0, 1, head_seq=4), epoch=1)
    received = second.receive()
    assert seqs(received) == [1, 2, 3, 4]
    assert received.count(b"event: caught-up") == 1
    assert received.index(b'"$seq":4') < received.index(
        b'event: caught-up\ndata: {"topic":"t","head_seq":4}'
    )


async def test_a_gap_above_the_feed_is_reported_once_before_the_records_after_it(
    front: LiveHarness,
) -> None:
    client = await opened(front)
    params = await front.answer("feed.read", records(12, 14), **page(0, 14, gap(1, 12)), epoch=1)
    assert (params["from_seq"], params["until_seq"]) == (0, 10)
    received = client.receive()
    assert (gaps(received), seqs(received)) == ([(1, 12)], [13, 14])
    await front.page(10, 13, tombstone=gap(11, 12))
    assert client.receive() == b""
    await front.page(13, 16)
    params = await front.answer("feed.read", records(14, 16), **page(14, 16), epoch=1)
    assert (params["from_seq"], params["until_seq"]) == (14, 16)
    await front.page(16, 17)
    received = client.receive()
    assert (gaps(received), seqs(received)) == ([], [15, 16, 17])


async def test_a_gap_is_reported_once_if_the_feed_advances_during_the_read(
    front: LiveHarness,
) -> None:
    client = await opened(front)
    await front.page(10, 13, tombstone=gap(11, 12))
    await front.page(13, 16)
    await front.answer("feed.read", records(12, 14), **page(0, 14, gap(1, 12)), epoch=1)
    params = await front.answer("feed.read", records(14, 16), **page(14, 16), epoch=1)
    assert (params["from_seq"], params["until_seq"]) == (14, 16)
    await front.page(16, 17)
    received = client.receive()
    assert (gaps(received), seqs(received)) == ([(1, 12)], [13, 14, 15, 16, 17])


@pytest.mark.parametrize("seq", [2, 3, 7])
async def test_an_id_after_a_recreation_resumes_after_the_sent_records(
    front: LiveHarness, seq: int
) -> None:
    """This also holds if the new topic's head equals the reader's cursor in the old one."""
    client = await front.client(seq, epoch=1)
    await front.answer("feed.open", head_seq=3, earliest_seq=1, epoch=2)
    body = b",".join(b'{"$seq":%d}' % number for number in (1, 2, 3))
    fields = page(0, 3) | {"tombstone": gap(1, 3, "recreated")}
    await front.answer("feed.read", body, **fields, epoch=2)
    received = client.receive()
    assert (gaps(received), seqs(received)) == ([(1, 3)], [1, 2, 3])
    assert client.session.cursors == {"t": (3, 2)}
    assert ids(received)[-1] == {"t": 3}


@pytest.mark.parametrize(
    ("reason", "earliest_seq", "reported"),
    [
        ("cap", 13, "from_seq_too_old"),
        ("ttl", 13, "from_seq_too_old"),
        ("damaged", 13, "damaged"),
        ("mixed", 13, "from_seq_too_old"),
        ("mixed", 1, "mixed"),  # a restart lost records between others
        ("recreated", 13, "recreated"),
        ("source_trim", 13, "source_trim"),
    ],
)
async def test_a_first_cursor_below_the_earliest_record_is_too_old(
    front: LiveHarness, reason: str, earliest_seq: int, reported: str
) -> None:
    client = await opened(front)
    lost = gap(1, 12, reason) | {"earliest_seq": earliest_seq}
    await front.answer("feed.read", records(12, 14), **page(0, 14, lost), epoch=1)
    assert reasons(client.receive()) == [reported]
    await front.page(14, 16, tombstone=gap(15, 15, reason) | {"earliest_seq": 16})
    assert reasons(client.receive()) == [reason], "the reason of a live gap was changed"


async def test_a_live_reader_of_a_recreated_topic_gets_caught_up_again(
    front: LiveHarness,
) -> None:
    client = await front.client()
    await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert b"event: caught-up" in client.receive()
    front.live.feeds.closed(0)
    await wait_all_tasks_blocked()
    await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=2)
    await front.answer(
        "feed.read", records(0, 1), **page(0, 1) | {"tombstone": gap(1, 1, "recreated")}, epoch=2
    )
    assert b"event: caught-up" in client.receive()

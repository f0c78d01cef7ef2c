"""Copies: one message to the target's shard, and what became of each copy."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.moves import datas, run_log, with_fake_peers
from tests.support.shard import Desk
from topics.actors.shard.queues.copies import Copy, Sent, send
from topics.errors import NotReady, TopicFull, TopicNotFound
from topics.formats.json_text import json_bytes


def copy(seq: int, *, create: bool | None = None) -> Copy:
    body = {"records": [{"data": seq}], "idempotency_key": f"key {seq}", "create": create}
    return Copy(seq, json_bytes(body))


async def test_the_copies_of_a_message_are_appends_of_their_own(desk: Desk) -> None:
    desk.make("a", cap_records=2, discard="reject")
    sent: list[Sent] = []
    peers = desk.loop.context.peers
    send(peers, "a", [copy(3), copy(5), copy(9)], sent.append)
    assert not sent
    await run_log(desk)
    ((appended, refused),) = sent
    assert appended == [3, 5]
    assert [(seq, type(failure)) for seq, failure in refused.items()] == [(9, TopicFull)]
    assert datas(desk, "a") == [3, 5]


async def test_a_copy_that_is_there_counts_as_appended(desk: Desk) -> None:
    sent: list[Sent] = []
    for _ in range(2):
        send(desk.loop.context.peers, "a", [copy(3)], sent.append)
        await run_log(desk)
    assert sent == [Sent([3], {}), Sent([3], {})]
    assert datas(desk, "a") == [3]


async def test_a_topic_is_made_only_where_the_request_allows_it(desk: Desk) -> None:
    sent: list[Sent] = []
    send(desk.loop.context.peers, "a", [copy(3, create=False)], sent.append)
    await run_log(desk)
    ((appended, refused),) = sent
    assert (appended, type(refused[3])) == ([], TopicNotFound)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_message_that_fails_as_a_whole_refuses_all_of_its_copies(
    desk: Desk, count: int
) -> None:
    peers, sent = with_fake_peers(desk), list[Sent]()
    failure = NotReady("away")
    send(desk.loop.context.peers, "a4", [copy(seq) for seq in range(count)], sent.append)
    (asked,) = peers.take()
    assert (asked.shard, asked.params.with_seqs, len(asked.requests)) == (4, False, count)
    asked.fail(failure)
    await wait_all_tasks_blocked()
    assert sent == [Sent([], dict.fromkeys(range(count), failure))]

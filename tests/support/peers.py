"""Calls to the peers of a shard from a test."""

from __future__ import annotations

import trio

from topics.actors.rpc.session import Reply
from topics.actors.shard.loop import ShardLoop
from topics.errors import NotReady, TopicsError
from topics.formats.wire.contract import Call, P, R


async def call_peer(
    loop: ShardLoop, shard: int, call: Call[P, R], params: P, body: bytes = b""
) -> Reply[R] | TopicsError:
    """Call ``shard`` from the shard of ``loop`` and return the reply."""
    answers: list[Reply[R] | TopicsError] = []
    arrived = trio.Event()

    def then(answer: Reply[R] | TopicsError) -> None:
        answers.append(answer)
        arrived.set()

    loop.context.begin_iteration()
    loop.context.peers.call(shard, call, params, body, then)
    assert not answers, "the reply must not be delivered within the call"
    loop.end_iteration()
    await arrived.wait()
    return answers[0]


async def call_until_connected(
    loop: ShardLoop, shard: int, call: Call[P, R], params: P, body: bytes = b""
) -> Reply[R] | TopicsError:
    """Repeat the call while the peer is not ready."""
    while True:
        answer = await call_peer(loop, shard, call, params, body)
        if not isinstance(answer, NotReady):
            return answer
        await trio.sleep(0.02)

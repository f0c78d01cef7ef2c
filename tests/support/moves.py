"""Helpers for tests that move records to topics of the same shard, or of fake peers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from topics.actors.rpc.session import Reply
from topics.engine.changes import lease_jobs
from topics.engine.priority import TOP_BAND
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.topic import Topic
from topics.errors import TopicsError
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import (
    AppendOutcome,
    AppendParams,
    AppendResult,
    RedriveParams,
    outcome_byte,
)

HOUR_MS = 3_600_000


class PeerCall(NamedTuple):
    """A message to a peer, and the function that receives the reply."""

    shard: int
    params: AppendParams
    requests: list[dict[str, Any]]
    then: Callable[[Any], None]

    def answer(self, *refused: TopicsError | None) -> None:
        """Reply with one outcome for each request: None if it is appended, or its failure.

        Without arguments, all requests are appended.
        """
        outcomes = refused or (None,) * len(self.requests)
        failures = [(each.code, each.message, each.detail) for each in outcomes if each is not None]
        kinds = bytes(
            outcome_byte(AppendOutcome.APPENDED if each is None else AppendOutcome.FAILED, TOP_BAND)
            for each in outcomes
        )
        self.then(FakeReply(AppendResult(kinds, [2] * len(kinds), failures or None)))

    def fail(self, failure: TopicsError) -> None:
        """Fail the complete message."""
        self.then(failure)


class FakeReply:
    """A replacement for `Reply`."""

    body = b""

    def __init__(self, result: AppendResult) -> None:
        self.result = result

    def release(self) -> None:
        """Do nothing, because no memory is shared."""


class FakePeers:
    """Peers for which the test replies. The shard of a topic is the number at the end of
    its name.
    """

    def __init__(self) -> None:
        self.unanswered: list[PeerCall] = []

    def shard_of(self, topic: str) -> int:
        return int(topic[-1]) if topic[-1].isdigit() else 1

    def call(
        self,
        shard: int,
        call: object,
        params: AppendParams,
        body: bytes,
        then: Callable[[Reply[AppendResult] | TopicsError], None],
    ) -> None:
        assert call is calls.APPEND
        assert params.lengths is not None
        requests, start = [], 0
        for length in params.lengths:
            requests.append(msgspec.json.decode(body[start : start + length]))
            start += length
        assert start == len(body)
        self.unanswered.append(PeerCall(shard, params, requests, then))

    def take(self) -> list[PeerCall]:
        taken, self.unanswered = self.unanswered, []
        return taken


def with_fake_peers(harness: ShardHarness) -> FakePeers:
    """Replace the peers of the shard by fake ones."""
    peers = FakePeers()
    harness.loop.context.peers = cast("Any", peers)
    return peers


async def run_log(harness: ShardHarness, rounds: int = 6) -> None:
    """Let the shard run until it is idle, and sync the log."""
    for _ in range(rounds):
        await wait_all_tasks_blocked()
        harness.flush()
        harness.log.sync()
        harness.advance()
    await wait_all_tasks_blocked()


def make_queue(harness: ShardHarness, name: str, *datas: Any, **config: Any) -> Topic:
    """Create a queue with jobs. Each job is delivered at most once, unless the config specifies
    more.
    """
    harness.make(name, type="queue", **{"max_deliveries": 1, "dead_letter": "dead", **config})
    if datas:
        harness.append(name, *datas)
        harness.synced()
        harness.answers()
    return harness.engine.queue(name)


def claim(harness: ShardHarness, topic: Topic, count: int = 1000) -> Sequence[int]:
    """Lease jobs to a worker. The claim pass also finds exhausted jobs."""
    engine, now = harness.engine, harness.loop.context.clock()
    holder = jobs_of(topic).leases.poller("worker")
    (change,) = lease_jobs.claim(
        engine.table, topic, [ClaimRequest(holder, count, HOUR_MS)], now, evenly=False
    )
    return list(change.seqs)


def exhaust(harness: ShardHarness, topic: Topic) -> None:
    """Deliver the existing jobs as often as allowed, so that the next claim pass finds
    them dead.
    """
    now = harness.loop.context.clock()
    for _ in range(topic.config.max_deliveries):
        seqs = claim(harness, topic)
        assert seqs
        lease_jobs.nack(topic, "worker", seqs, None, 0, now)
    assert not claim(harness, topic)
    assert jobs_of(topic).dead


def wake(harness: ShardHarness, topic: Topic) -> None:
    """Notify the mover, as a claim pass does that has found dead jobs."""
    harness.loop.context.begin_iteration()
    harness.loop.services.dead_letters.wake(topic)
    harness.loop.end_iteration()


def redrive(
    harness: ShardHarness, topic: str, *, prefixes: list[str] | None = None, **body: Any
) -> int:
    """Request a redrive and return the number of the request."""
    params = RedriveParams(topic, prefixes, time.monotonic_ns())
    return harness.request(calls.REDRIVE, params, json_bytes(body))


def records(harness: ShardHarness, topic: str) -> list[dict[str, Any]]:
    """Return the records that a reader sees now."""
    harness.diff(topic, limit=1000, include_tags=True)
    ((_, page),) = harness.bodies()
    found: list[dict[str, Any]] = page["records"]
    return found


def datas(harness: ShardHarness, topic: str) -> list[Any]:
    return [record["data"] for record in records(harness, topic)]

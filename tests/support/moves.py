"""A desk of a shard whose records move to topics of this shard, or of peers that are fakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import msgspec
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import Desk
from topics.actors.rpc.session import Reply
from topics.engine.changes import lease_jobs
from topics.engine.priority import TOP_BAND
from topics.engine.queue.claims import Ask, jobs_of
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


class Asked(NamedTuple):
    """A message to a peer, and how it is answered."""

    shard: int
    params: AppendParams
    requests: list[dict[str, Any]]
    then: Callable[[Any], None]

    def answer(self, *refused: TopicsError | None) -> None:
        """None for each request that is appended; without any, all of them are."""
        outcomes = refused or (None,) * len(self.requests)
        failures = [(each.code, each.message, each.detail) for each in outcomes if each is not None]
        kinds = bytes(
            outcome_byte(AppendOutcome.APPENDED if each is None else AppendOutcome.FAILED, TOP_BAND)
            for each in outcomes
        )
        self.then(FakeReply(AppendResult(kinds, [2] * len(kinds), failures or None)))

    def fail(self, failure: TopicsError) -> None:
        """The whole message fails."""
        self.then(failure)


class FakeReply:
    """Stands for a `Reply`."""

    body = b""

    def __init__(self, result: AppendResult) -> None:
        self.result = result

    def release(self) -> None:
        """Nothing is in shared memory."""


class FakePeers:
    """Peers whose answers the test gives. The shard of a topic is the number at its end."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []

    def shard_of(self, topic: str) -> int:
        return int(topic[-1]) if topic[-1].isdigit() else 1

    def ask(
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
        self.asked.append(Asked(shard, params, requests, then))

    def take(self) -> list[Asked]:
        taken, self.asked = self.asked, []
        return taken


def with_fake_peers(desk: Desk) -> FakePeers:
    """From now on the desk's shard asks these."""
    peers = FakePeers()
    desk.loop.context.peers = cast("Any", peers)
    return peers


async def run_log(desk: Desk, rounds: int = 6) -> None:
    """Let the shard do all that it does by itself; the log takes what it is given."""
    for _ in range(rounds):
        await wait_all_tasks_blocked()
        desk.flush()
        desk.log.sync()
        desk.advance()
    await wait_all_tasks_blocked()


def make_queue(desk: Desk, name: str, *datas: Any, **config: Any) -> Topic:
    """A queue with jobs, of which each is delivered once at most unless the config says more."""
    desk.make(name, type="queue", **{"max_deliveries": 1, "dead_letter": "dead", **config})
    if datas:
        desk.append(name, *datas)
        desk.synced()
        desk.answers()
    return desk.engine.queue(name)


def claim(desk: Desk, topic: Topic, count: int = 1000) -> Sequence[int]:
    """Lease jobs to a worker; a pass finds the exhausted ones."""
    engine, now = desk.engine, desk.loop.context.clock()
    holder = jobs_of(topic).leases.poller("worker")
    (change,) = lease_jobs.claim(
        engine.table, topic, [Ask(holder, count, HOUR_MS)], now, evenly=False
    )
    return list(change.seqs)


def exhaust(desk: Desk, topic: Topic) -> None:
    """Deliver the jobs that are there as often as they may be; the next pass finds them dead."""
    now = desk.loop.context.clock()
    for _ in range(topic.config.max_deliveries):
        seqs = claim(desk, topic)
        assert seqs
        lease_jobs.nack(topic, "worker", seqs, None, 0, now)
    assert not claim(desk, topic)
    assert jobs_of(topic).dead


def wake(desk: Desk, topic: Topic) -> None:
    """What a pass does that has found dead jobs."""
    desk.loop.context.begin_turn()
    desk.loop.services.dead_letters.wake(topic)
    desk.loop.end_turn()


def redrive(desk: Desk, topic: str, *, prefixes: list[str] | None = None, **body: Any) -> int:
    """Ask for a redrive; its number."""
    params = RedriveParams(topic, prefixes, time.monotonic_ns())
    return desk.ask(calls.REDRIVE, params, json_bytes(body))


def records(desk: Desk, topic: str) -> list[dict[str, Any]]:
    """What a reader sees now."""
    desk.diff(topic, limit=1000, include_tags=True)
    ((_, page),) = desk.bodies()
    found: list[dict[str, Any]] = page["records"]
    return found


def datas(desk: Desk, topic: str) -> list[Any]:
    return [record["data"] for record in records(desk, topic)]

"""Harness for queues: its clients claim, ack and open work streams. The time is that of trio."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import trio

from tests.support.shard import ShardHarness
from topics.actors.rpc.session import LinkSession
from topics.engine.now import Now
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import AppendOutcome, WorkOpenParams, outcome_in
from topics.formats.wire.contract import Call
from topics.formats.wire.envelope import Failure, Notification, Success, decode
from topics.formats.wire.message import Message

TS_0, MS_0 = 10**12, 10**6
EVENTS = {event.method: event for event in (calls.WORK_JOBS, calls.WORK_ENDED)}

Received = dict[str, Any]
"""A reply: its ``cid``, its ``status`` (200 or an error code) and its body. An event: its
``event``, its params and its jobs.
"""


def trio_clock() -> Now:
    """Return both clocks derived from the time of trio."""
    ms = round(trio.current_time() * 1000)
    return Now(TS_0 + ms, MS_0 + ms)


class QueueHarness(ShardHarness):
    """A session of a front with a shard that has queues. Nothing is served before
    `run_iteration`.
    """

    def __init__(self, folder: Path, nursery: trio.Nursery, **kwargs: Any) -> None:
        super().__init__(folder, nursery, **kwargs)
        self.loop.context.clock = self.commits.now = trio_clock
        self.services = self.loop.services

    def queue(
        self, topic: str = "q", *, durability: str = "ephemeral", jobs: int = 0, **config: Any
    ) -> None:
        """Create a queue with this number of jobs before the test begins."""
        self.make(topic, type="queue", durability=durability, **config)
        if jobs:
            self.jobs(jobs, topic)
            self.received()

    def jobs(self, count: int, topic: str = "q") -> list[int]:
        """Append jobs one by one to an ephemeral queue and return their seqs."""
        first = self.engine.topic(topic).next_seq
        for seq in range(first, first + count):
            self.append(topic, seq)
        return list(range(first, first + count))

    # Calls of workers. Each returns the number of the request.

    def claim(self, topic: str = "q", *, node: str = "w", **fields: Any) -> int:
        params = calls.TopicParams(topic, time.monotonic_ns())
        return self.request(calls.CLAIM, params, json_bytes({"node": node, **fields}))

    def ack(self, *seqs: int, topic: str = "q", node: str = "w", **fields: Any) -> int:
        return self._of_jobs(calls.ACK, topic, {"node": node, "seqs": seqs, **fields})

    def nack(self, *seqs: int, topic: str = "q", node: str = "w", **fields: Any) -> int:
        return self._of_jobs(calls.NACK, topic, {"node": node, "seqs": seqs, **fields})

    def extend(self, *seqs: int, topic: str = "q", node: str = "w", **fields: Any) -> int:
        return self._of_jobs(calls.EXTEND, topic, {"node": node, "seqs": seqs, **fields})

    def _of_jobs(
        self, call: Call[calls.TopicParams, calls.NoResult], topic: str, body: dict[str, Any]
    ) -> int:
        return self.request(call, calls.TopicParams(topic, time.monotonic_ns()), json_bytes(body))

    def leases(
        self,
        topic: str = "q",
        after: int = 0,
        limit: int = 100,
        node: str | None = None,
        *,
        with_ids: bool = True,
    ) -> int:
        at = time.monotonic_ns()
        params = calls.LeasesParams(topic, after, limit, node, with_ids, at)
        return self.request(calls.LEASES, params)

    def state(self, topic: str = "q") -> int:
        return self.request(
            calls.TOPIC_GET, calls.TopicGetParams(topic, False, time.monotonic_ns())
        )

    def unclaimed(self, message: Received) -> None:
        """Report that the response to a claim reached no client."""
        params = calls.UnclaimedParams(message["topic"], message["number"], message["seqs"])
        self.notify(calls.UNCLAIMED, params)

    # Work streams

    def open(
        self,
        max_jobs: int = 1,
        *,
        topic: str = "q",
        work: int = 1,
        node: str = "s",
        lease_ms: int | None = None,
    ) -> int:
        return self.request(calls.WORK_OPEN, WorkOpenParams(work, topic, node, max_jobs, lease_ms))

    def taken(self, work: int = 1) -> None:
        self.notify(calls.WORK_TAKEN, calls.WorkTakenParams(work))

    def close(self, work: int = 1, *, pages: int = 1) -> None:
        self.notify(calls.WORK_CLOSE, calls.WorkCloseParams(work, pages))

    # Iterations

    def run_iteration(self) -> None:
        """Run one iteration, as the actor does after each batch of messages."""
        self.loop.context.begin_iteration()
        self.loop.end_iteration()

    def request(self, call: Call[Any, Any], params: Any, body: bytes = b"") -> int:
        self.loop.context.begin_iteration()
        return super().request(call, params, body)

    def close_session(self) -> None:
        """Replace the session, as a restarted front does."""
        self.session.close()
        self.session: LinkSession = self.loop.open_session("front-0", self.wire)

    # Messages of the shard since the last call

    def received(self) -> list[Received]:
        """Return all replies and events. Those of appends have no body."""
        return [self._read_message(frame) for frame in self.wire.take()]

    def _read_message(self, frame: Message) -> Received:
        envelope = decode(frame.payload)
        body = bytes(frame.attachment)
        if isinstance(envelope, Notification):
            params = EVENTS[envelope.method].params._make(envelope.params)._asdict()
            return {"event": envelope.method, **params, "jobs": _cut(body, params.get("lengths"))}
        if isinstance(envelope, Failure):
            code = envelope.data["code"] if envelope.data else envelope.code
            return {"cid": envelope.cid, "status": code}
        assert isinstance(envelope, Success)
        call = self._calls[envelope.cid]
        message: Received = {"cid": envelope.cid, "status": 200} | call.result._make(
            envelope.result
        )._asdict()
        if call is calls.APPEND:
            is_failed = outcome_in(message["outcomes"][0]) == AppendOutcome.FAILED
            return {"cid": envelope.cid, "status": message["failures"][0][0] if is_failed else 200}
        content: Any = msgspec.json.decode(body or b"{}")
        message |= content if isinstance(content, dict) else {"leases": content}
        return message

    def answer(self) -> Received:
        """Return the only reply. Events are dropped."""
        (found,) = (message for message in self.received() if "cid" in message)
        return found

    def claimed(self) -> list[tuple[int, list[int]]]:
        """Return the replies to claims in order: the number of the claim and the seqs of
        its jobs.
        """
        self.run_iteration()
        return [
            (message["cid"], seqs_of(message))
            for message in self.received()
            if "claimed" in message
        ]

    def pages(self) -> list[tuple[int, list[int]]]:
        """Return the pages of jobs in order: the number of the stream and the seqs."""
        self.run_iteration()
        return [
            (message["work"], message["seqs"])
            for message in self.received()
            if message.get("event") == calls.WORK_JOBS.method
        ]


def seqs_of(message: Received) -> list[int]:
    found = [job["$seq"] for job in message["claimed"]]
    assert message["count"] == len(found)
    assert found == sorted(found)
    return found


def _cut(body: bytes, lengths: list[int] | None) -> list[dict[str, Any]]:
    found = []
    for length in lengths or ():
        found.append(msgspec.json.decode(body[:length]))
        body = body[length:]
    assert not body
    return found

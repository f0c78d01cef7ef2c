"""Work streams of topic ``jobs`` without a server."""

from __future__ import annotations

import socket
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.live_desk import Desk, Listener, Socket, socket_pair
from topics.engine.access import ANYONE, Principal
from topics.errors import TopicsError
from topics.front.live.work_stream import WorkStream
from topics.front.live.work_subscriptions import WorkSubscription

OPENING = b"retry: 2000\n\n: hb\n\n"


def job(seq: int, data: bytes = b"1") -> bytes:
    """A leased job, as a shard sends it."""
    return b'{"lease_id":"lease_%x","deadline":9,"deliveries":1,"$seq":%d,"$ts":7,"data":%b}' % (
        seq,
        seq,
        data,
    )


def event(seq: int, data: bytes = b"1") -> bytes:
    """The event of such a job; ``data`` has no line ends."""
    member = b'{"topic":"jobs",' + job(seq, data)[1:]
    return b"id: %d\nevent: job\ndata: %b\n\n" % (seq, member)


async def jobs(front: Desk, *seqs: int, work: int = 1, data: bytes = b"1") -> None:
    """Jobs from the shard, and all that follows from it."""
    made = [job(seq, data) for seq in seqs]
    params = {"work": work, "seqs": seqs, "lengths": [len(one) for one in made]}
    front.event(0, "work.jobs", params, b"".join(made))
    await wait_all_tasks_blocked()


def ask(
    front: Desk, principal: Principal = ANYONE, scope: trio.CancelScope | None = None
) -> list[WorkSubscription | TopicsError]:
    """Ask for work in a task; the list gets the outcome."""
    outcomes: list[WorkSubscription | TopicsError] = []

    async def run() -> None:
        with scope or trio.CancelScope():
            try:
                outcomes.append(
                    await front.live.work.open(
                        0, "jobs", principal, node="n", max_jobs=2, lease_ms=None
                    )
                )
            except TopicsError as failure:
                outcomes.append(failure)

    front.live.nursery.start_soon(run)
    return outcomes


async def opened(front: Desk, principal: Principal = ANYONE) -> WorkSubscription:
    """A subscription that the shard has opened."""
    outcomes = ask(front, principal)
    await wait_all_tasks_blocked()
    await front.answer("work.open")
    (subscription,) = outcomes
    assert isinstance(subscription, WorkSubscription)
    return subscription


class Worker(Listener):
    """A stream of a subscription, which runs, and the other end of its socket."""

    def __init__(self, front: Desk, subscription: WorkSubscription) -> None:
        ours, self.sock = socket_pair()
        for end in (ours, self.sock):
            front.exits.enter_context(end)
        connection: Any = Socket(ours)
        self.stream = WorkStream(front.live, subscription, connection)
        front.live.nursery.start_soon(self.stream.run)

    def hang_up(self, *, half: bool = False) -> None:
        """Close the client's end, or only say that nothing more comes."""
        if half:
            self.sock.shutdown(socket.SHUT_WR)
        else:
            self.sock.close()


async def worker(front: Desk) -> Worker:
    """A worker that has heard how its stream opens."""
    made = Worker(front, await opened(front))
    await wait_all_tasks_blocked()
    assert made.hear() == OPENING
    return made

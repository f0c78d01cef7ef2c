"""What the tests of queues ask with (§10): a queue by its name, jobs, and claims in the background.

Every answer is checked for its documented fields before a test looks into it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar
from urllib.parse import urlencode

from tests.support.api import TIMEOUT_S, Answer, Api, Wire, ok, reached, request
from tests.support.sse import SseEvent, Stream, seqs
from topics.formats.names import shard_of

T = TypeVar("T")
Job = dict[str, Any]

JOB, ERROR = "job", "error"
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
SHORT_MS = 100  # the shortest lease there is
BOUND_S = 20.0  # for what comes by itself, on a loaded machine
TWINS_TRIED = 300
JOB_FIELDS = {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
OPTIONAL_FIELDS = {"$tag", "$node", "meta", "last_error"}
LEASE_ID = re.compile(r"lease_[0-9a-f]+")


def until(
    look: Callable[[], T], wanted: Callable[[T], object] = bool, bound_s: float = BOUND_S
) -> T:
    """Look again and again until what is seen is wanted."""
    deadline = time.monotonic() + bound_s
    while not wanted(found := look()):
        assert time.monotonic() < deadline, f"not within {bound_s} s; last seen: {found}"
        time.sleep(0.02)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def numbers(jobs: Iterable[Job | int]) -> list[int]:
    """The seqs of jobs, or of what are seqs already."""
    return [job if isinstance(job, int) else job["$seq"] for job in jobs]


def tokens(jobs: Iterable[Job]) -> list[str]:
    return [job["lease_id"] for job in jobs]


def data(jobs: Iterable[Job]) -> list[Any]:
    return [job["data"] for job in jobs]


def counters(
    ready: int = 0, in_flight: int = 0, dead_lettered: int = 0, delayed: int = 0
) -> dict[str, int]:
    """The ``queue`` object of a state (§10.7)."""
    return {
        "ready": ready,
        "in_flight": in_flight,
        "dead_lettered": dead_lettered,
        "delayed": delayed,
    }


def is_a_job(job: Job) -> None:
    assert JOB_FIELDS <= set(job) <= JOB_FIELDS | OPTIONAL_FIELDS, job
    assert LEASE_ID.fullmatch(job["lease_id"]), job
    assert job["deliveries"] >= 1, job
    assert type(job["deadline"]) is int, job


class Queue:
    """A queue through one client."""

    def __init__(self, api: Api, name: str) -> None:
        self.api, self.name = api, name

    @classmethod
    def create(cls, api: Api, name: str, *data: Any, **config: Any) -> Self:
        """A new queue that holds these jobs."""
        ok(api.put(name, {"type": "queue", **config}), 201)
        queue = cls(api, name)
        if data:
            queue.push(*data)
        return queue

    def configure(self, **config: Any) -> None:
        ok(self.api.put(self.name, config))

    def push(self, *data: Any, **fields: Any) -> list[int]:
        """Append jobs; their seqs."""
        found: list[int] = ok(self.api.append(self.name, *data, **fields))["seqs"]
        return found

    def call(self, verb: str, body: Any) -> Answer:
        return self.api.call("POST", f"/v0/topics/{self.name}/{verb}", body)

    # --- claims

    def claimed(self, node: str = "w", max_jobs: int | None = None, **fields: Any) -> Any:
        """The whole answer of a claim."""
        asked = {"node": node, **({} if max_jobs is None else {"max": max_jobs}), **fields}
        return claim_body(self.call("claim", asked), self.name, max_jobs or 1)

    def claim(self, node: str = "w", max_jobs: int | None = None, **fields: Any) -> list[Job]:
        found: list[Job] = self.claimed(node, max_jobs, **fields)["claimed"]
        return found

    def claim_all(self, count: int, node: str = "w", **fields: Any) -> list[Job]:
        """Claim again and again until there are so many jobs, in the order of the claims."""
        found: list[Job] = []

        def look() -> list[Job]:
            found.extend(self.claim(node, count - len(found), **fields))
            return found

        return until(look, lambda jobs: len(jobs) == count)

    # --- what the holder says

    def ack(self, jobs: Sequence[Job | int], node: str = "w", **fields: Any) -> Any:
        body = self._settled("ack", "acked", jobs, node, fields)
        assert {"ready", "in_flight"} <= set(body), body
        return body

    def nack(self, jobs: Sequence[Job | int], node: str = "w", **fields: Any) -> Any:
        body = self._settled("nack", "nacked", jobs, node, fields)
        assert {"ready", "in_flight"} <= set(body), body
        return body

    def extend(
        self, jobs: Sequence[Job | int], node: str = "w", *, lease_ms: int = HOUR_MS, **fields: Any
    ) -> Any:
        body = self._settled("extend", "extended", jobs, node, {"lease_ms": lease_ms, **fields})
        left = set(numbers(jobs)) - set(body["skipped"])
        assert {*body["deadlines"]} == {str(seq) for seq in left}, body
        return body

    def _settled(
        self, verb: str, count: str, jobs: Sequence[Job | int], node: str, fields: dict[str, Any]
    ) -> Any:
        """The answer, which tells of every seq in the request."""
        asked = numbers(jobs)
        body = ok(self.call(verb, {"node": node, "seqs": asked, **fields}))
        assert {"topic", count, "skipped"} <= set(body), body
        assert body["topic"] == self.name
        left = set(body["skipped"])
        assert body["skipped"] == [seq for seq in asked if seq in left], "in the request's order"
        assert body[count] + len(body["skipped"]) == len(asked), body
        return body

    # --- dead letters

    def spend(self, count: int, times: int) -> None:
        """Deliver the next jobs so often, and give them back each time."""
        for _ in range(times):
            jobs = self.claim("w", count)
            assert len(jobs) == count
            self.nack(jobs)

    def bury(self, count: int) -> None:
        """Passes that would deliver so many exhausted jobs, until all are moved."""
        expected = self.counters()["dead_lettered"] + count

        def look() -> int:
            assert self.claim("pass") == []
            return self.counters()["dead_lettered"]

        assert until(look, lambda found: found >= expected) == expected

    # --- what is to be seen

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.api.state(self.name)["queue"]
        return found

    def becomes(self, **expected: int) -> None:
        """The counters are these, now or soon."""
        until(self.counters, lambda found: found == counters(**expected))

    def live(self) -> list[int]:
        """The seqs of the jobs log."""
        return seqs(self.api.read(self.name))

    def leases(self, **query: object) -> list[Any]:
        """All leases, through every page."""
        found: list[Any] = []
        asked = dict(query)
        while True:
            page = ok(self.api.call("GET", f"/v0/topics/{self.name}/leases?{urlencode(asked)}"))
            found += page["leases"]
            if "next_cursor" not in page:
                return found
            asked["cursor"] = page["next_cursor"]

    def erase(self, **fields: Any) -> None:
        ok(self.call("delete", fields))

    def redrive(self, **fields: Any) -> Any:
        return ok(self.call("redrive", fields))


def claim_body(answer: Answer, name: str, max_jobs: int) -> Any:
    """The body of a claim's answer, which has the fields of §10.2."""
    body = ok(answer)
    assert {"topic", "claimed", "count", "ready"} <= set(body), body
    jobs = body["claimed"]
    for job in jobs:
        is_a_job(job)
    assert (body["topic"], body["count"]) == (name, len(jobs))
    assert len(jobs) <= max_jobs
    assert numbers(jobs) == sorted(set(numbers(jobs))), "ascending by $seq"
    assert len({*tokens(jobs)}) == len(jobs)
    return body


def asking(queue: Queue, **fields: Any) -> bytes:
    """The bytes of a claim for an hour."""
    body = json.dumps({"node": "w", "lease_ms": HOUR_MS, **fields}).encode()
    return request("POST", f"/v0/topics/{queue.name}/claim", body)


# --- claims in the background


class Claims:
    """Claims on connections of their own. They are sent at once, one after the other, and answered
    in threads.
    """

    def __init__(self, queue: Queue, pool: ThreadPoolExecutor) -> None:
        self._queue, self._pool = queue, pool

    def start(self, node: str = "w", max_jobs: int = 1, **fields: Any) -> Future[Any]:
        """A claim whose whole answer is the future's result."""
        body = json.dumps({"node": node, "max": max_jobs, **fields}).encode()
        wire = Wire(self._queue.api.address, 60)
        wire.send(request("POST", f"/v0/topics/{self._queue.name}/claim", body))
        return self._pool.submit(self._answer, wire, max_jobs)

    def start_parked(self, node: str = "w", max_jobs: int = 1, **fields: Any) -> Future[Any]:
        """A claim that has reached the queue."""
        future = self.start(node, max_jobs, **fields)
        parked(self._queue)
        return future

    def _answer(self, wire: Wire, max_jobs: int) -> Any:
        with wire:
            return claim_body(wire.answer(), self._queue.name, max_jobs)


def parked(queue: Queue) -> None:
    """The claims that were sent have reached the queue."""
    reached(queue.api, queue.name)


@contextmanager
def claiming(queue: Queue) -> Iterator[Claims]:
    with ThreadPoolExecutor(16) as pool:
        yield Claims(queue, pool)


def jobs_of(future: Future[Any]) -> list[Job]:
    """The jobs of a claim in the background."""
    found: list[Job] = future.result(60)["claimed"]
    return found


# --- work streams


def work_path(name: str, **query: object) -> str:
    return f"/v0/topics/{name}/work?{urlencode(query)}"


class Work(Stream):
    """An open work stream (§10.8)."""

    def __init__(
        self,
        queue: Queue,
        node: str = "w",
        max_jobs: int = 1,
        *,
        token: str | None = None,
        receive_bytes: int | None = None,
        **query: object,
    ) -> None:
        self.topic = queue.name
        path = work_path(queue.name, node=node, max=max_jobs, **query)
        super().__init__(queue.api.address, path, token=token, receive_bytes=receive_bytes)

    def jobs(self, count: int, timeout_s: float = TIMEOUT_S) -> list[Job]:
        """The next ``count`` jobs."""
        return [self.job_of(self.event(JOB, timeout_s=timeout_s)) for _ in range(count)]

    def job_of(self, event: SseEvent) -> Job:
        """The job of an event, which has the fields of §10.8."""
        job: Job = event.json()
        assert job.pop("topic") == self.topic
        is_a_job(job)
        assert event.id == str(job["$seq"])
        return job


# --- shards


def names_on(base: str, shards: int = 2) -> tuple[str, str]:
    """Two more names: one on the shard of ``base``, one on another."""
    home = shard_of(base, shards)
    candidates = [f"{base}.{number}" for number in range(50)]
    same = next(name for name in candidates if shard_of(name, shards) == home)
    return same, next(name for name in candidates if shard_of(name, shards) != home)


def fill_the_log(api: Api) -> None:
    """Enough other writes to seal all small log files so far, on both shards."""
    for name in names_on("filler"):
        for number in range(60):
            answer = api.append(name, f"{number}" * 4000)
            ok(answer, answer.status)


def twins(address: tuple[str, int], base: str, shards: int = 2, **config: Any) -> list[list[str]]:
    """Queues with the epoch of a queue of another shard, in groups of one epoch; others go.

    Clients make them at the same time, each those of one shard.
    """
    names = [f"{base}.{number}" for number in range(TWINS_TRIED)]

    def make(shard: int) -> list[tuple[int, str]]:
        with Api(address) as api:
            own = [name for name in names if shard_of(name, shards) == shard]
            made = [(ok(api.put(name, {"type": "queue", **config}), 201), name) for name in own]
        return [(answer["epoch"], name) for answer, name in made]

    by_epoch: dict[int, list[str]] = {}
    with ThreadPoolExecutor(shards) as pool:
        for made in pool.map(make, range(shards)):
            for epoch, name in made:
                by_epoch.setdefault(epoch, []).append(name)
    found = [group for group in by_epoch.values() if len(group) > 1]
    with Api(address) as api:
        for name in {*names}.difference(*found):
            ok(api.delete(name))
    return found

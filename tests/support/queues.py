"""Helpers for queues (§10): a queue by its name, jobs, and claims in the background.

Every response is checked for its documented fields before a test reads it.
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
SHORT_MS = 100  # The shortest lease
BOUND_S = 20.0  # For changes without a request, on a loaded machine
PAIRS_TRIED = 300
JOB_FIELDS = {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
OPTIONAL_FIELDS = {"$tag", "$node", "meta", "last_error"}
LEASE_ID = re.compile(r"lease_[0-9a-f]+")


def until(
    probe: Callable[[], T], is_expected: Callable[[T], object] = bool, bound_s: float = BOUND_S
) -> T:
    """Poll until the result satisfies the condition."""
    deadline = time.monotonic() + bound_s
    while not is_expected(found := probe()):
        assert time.monotonic() < deadline, f"not within {bound_s} s; last seen: {found}"
        time.sleep(0.02)
    return found


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def numbers(jobs: Iterable[Job | int]) -> list[int]:
    """Return the seqs of jobs, or the values that already are seqs."""
    return [job if isinstance(job, int) else job["$seq"] for job in jobs]


def tokens(jobs: Iterable[Job]) -> list[str]:
    return [job["lease_id"] for job in jobs]


def data(jobs: Iterable[Job]) -> list[Any]:
    return [job["data"] for job in jobs]


def counters(
    ready: int = 0, in_flight: int = 0, dead_lettered: int = 0, delayed: int = 0
) -> dict[str, int]:
    """Return the ``queue`` object of a state (§10.7)."""
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
    """A queue accessed by one client."""

    def __init__(self, api: Api, name: str) -> None:
        self.api, self.name = api, name

    @classmethod
    def create(cls, api: Api, name: str, *data: Any, **config: Any) -> Self:
        """Create a queue that contains these jobs."""
        ok(api.put(name, {"type": "queue", **config}), 201)
        queue = cls(api, name)
        if data:
            queue.push(*data)
        return queue

    def configure(self, **config: Any) -> None:
        ok(self.api.put(self.name, config))

    def push(self, *data: Any, **fields: Any) -> list[int]:
        """Append jobs and return their seqs."""
        found: list[int] = ok(self.api.append(self.name, *data, **fields))["seqs"]
        return found

    def call(self, verb: str, body: Any) -> Answer:
        return self.api.call("POST", f"/v0/topics/{self.name}/{verb}", body)

    # --- claims

    def claimed(self, node: str = "w", max_jobs: int | None = None, **fields: Any) -> Any:
        """Return the complete response of a claim."""
        asked = {"node": node, **({} if max_jobs is None else {"max": max_jobs}), **fields}
        return claim_body(self.call("claim", asked), self.name, max_jobs or 1)

    def claim(self, node: str = "w", max_jobs: int | None = None, **fields: Any) -> list[Job]:
        found: list[Job] = self.claimed(node, max_jobs, **fields)["claimed"]
        return found

    def claim_all(self, count: int, node: str = "w", **fields: Any) -> list[Job]:
        """Claim repeatedly until there are ``count`` jobs, and return them in the order of the
        claims.
        """
        found: list[Job] = []

        def probe() -> list[Job]:
            found.extend(self.claim(node, count - len(found), **fields))
            return found

        return until(probe, lambda jobs: len(jobs) == count)

    # --- calls of the holder

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
        """Return the response, which must account for every seq of the request."""
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
        """Deliver the next jobs this number of times, and release them each time."""
        for _ in range(times):
            jobs = self.claim("w", count)
            assert len(jobs) == count
            self.nack(jobs)

    def bury(self, count: int) -> None:
        """Make claims until this number of exhausted jobs has been moved."""
        expected = self.counters()["dead_lettered"] + count

        def probe() -> int:
            assert self.claim("pass") == []
            return self.counters()["dead_lettered"]

        assert until(probe, lambda found: found >= expected) == expected

    # --- queries

    def counters(self) -> dict[str, int]:
        found: dict[str, int] = self.api.state(self.name)["queue"]
        return found

    def becomes(self, **expected: int) -> None:
        """Wait until the counters have these values."""
        until(self.counters, lambda found: found == counters(**expected))

    def live(self) -> list[int]:
        """Return the seqs of the jobs in the queue."""
        return seqs(self.api.read(self.name))

    def leases(self, **query: object) -> list[Any]:
        """Return all leases from all pages."""
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
    """Return the body of a claim response, which must have the fields of §10.2."""
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
    """Return the bytes of a claim with a lease of one hour."""
    body = json.dumps({"node": "w", "lease_ms": HOUR_MS, **fields}).encode()
    return request("POST", f"/v0/topics/{queue.name}/claim", body)


# --- claims in the background


class Claims:
    """Claims on separate connections. They are sent immediately and in order, and the responses
    are read in threads.
    """

    def __init__(self, queue: Queue, pool: ThreadPoolExecutor) -> None:
        self._queue, self._pool = queue, pool

    def start(self, node: str = "w", max_jobs: int = 1, **fields: Any) -> Future[Any]:
        """Send a claim. The result of the future is the complete response."""
        body = json.dumps({"node": node, "max": max_jobs, **fields}).encode()
        wire = Wire(self._queue.api.address, 60)
        wire.send(request("POST", f"/v0/topics/{self._queue.name}/claim", body))
        return self._pool.submit(self._answer, wire, max_jobs)

    def start_parked(self, node: str = "w", max_jobs: int = 1, **fields: Any) -> Future[Any]:
        """Send a claim and wait until it has reached the queue."""
        future = self.start(node, max_jobs, **fields)
        parked(self._queue)
        return future

    def _answer(self, wire: Wire, max_jobs: int) -> Any:
        with wire:
            return claim_body(wire.answer(), self._queue.name, max_jobs)


def parked(queue: Queue) -> None:
    """Wait until the claims that were sent have reached the queue."""
    reached(queue.api, queue.name)


@contextmanager
def claiming(queue: Queue) -> Iterator[Claims]:
    with ThreadPoolExecutor(16) as pool:
        yield Claims(queue, pool)


def jobs_of(future: Future[Any]) -> list[Job]:
    """Return the jobs of a claim in the background."""
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
        """Return the next ``count`` jobs."""
        return [self.job_of(self.event(JOB, timeout_s=timeout_s)) for _ in range(count)]

    def job_of(self, event: SseEvent) -> Job:
        """Return the job of an event, which must have the fields of §10.8."""
        job: Job = event.json()
        assert job.pop("topic") == self.topic
        is_a_job(job)
        assert event.id == str(job["$seq"])
        return job


# --- shards


def names_on(base: str, shards: int = 2) -> tuple[str, str]:
    """Return two more names: one in the shard of ``base``, one in another."""
    home = shard_of(base, shards)
    candidates = [f"{base}.{number}" for number in range(50)]
    same = next(name for name in candidates if shard_of(name, shards) == home)
    return same, next(name for name in candidates if shard_of(name, shards) != home)


def fill_the_log(api: Api) -> None:
    """Make enough other writes to seal all current small log files of both shards."""
    for name in names_on("filler"):
        for number in range(60):
            answer = api.append(name, f"{number}" * 4000)
            ok(answer, answer.status)


def twins(address: tuple[str, int], base: str, shards: int = 2, **config: Any) -> list[list[str]]:
    """Return groups of queues in different shards that have the same epoch.

    One client per shard creates queues at the same time. Queues without a counterpart are omitted.
    """
    names = [f"{base}.{number}" for number in range(PAIRS_TRIED)]

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

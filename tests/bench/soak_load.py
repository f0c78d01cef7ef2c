"""The clients of `tests.bench.soak`: threads that use all features concurrently and know
the expected results.

The records of a topic are numbered, so a reader must receive consecutive numbers. Each client is
paced: it calls ``step`` once per ``pause_s``.
"""

from __future__ import annotations

import math
import random
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import closing
from time import monotonic, sleep
from typing import Any, Final

from tests.support.server import Server
from tests.support.ws import Socket
from topics.client import ConnectionLost, Event, Record, Throttled, Tombstone, Topics, calls

END: Final = -1  # marks the last record of a topic
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
CAP_BYTES: Final = 8 << 20
TIMED: Final = ("appends", "live", "claims")
GRACE_S: Final = 10.0  # after a restart, in which a client may have waited for a processor
TIMEOUT_S: Final = 90.0  # longer than a client retries
NODE: Final = "soak"
RETRY_S: Final = 0.2
BROKEN: Final = (OSError, EOFError, AssertionError)  # errors of a WebSocket


class Soak:
    """State that the clients share. ``next``: the number of the next record of a topic.
    ``uncertain``: numbers of records that may be stored or not. ``jobs``: unfinished jobs.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.url = server, f"http://127.0.0.1:{server.port}"
        server.env["TOPICS_PORT"] = str(server.port)  # keeps its port in all restarts
        self.ending = threading.Event()
        self.next, self.uncertain = dict.fromkeys(CLASSES, 0), set[tuple[str, int]]()
        self.jobs, self.uncertain_jobs = set[int](), set[int]()
        self.took_s: dict[str, list[float]] = {name: [] for name in TIMED}
        self.counts, self.problems = Counter[str](), list[str]()
        self.restart_count, self._is_down, self._up_at = 0, False, -math.inf

    def failed(self, failure: Exception, _pause_s: float = 0.0) -> None:
        """Record a failed request. Most requests are retried."""
        if isinstance(failure, Throttled):
            self.counts["refused"] += 1
        elif self._is_down or monotonic() < self._up_at + GRACE_S:
            self.counts["failed in restarts"] += 1
        else:
            self.wrong(repr(failure))

    def wrong(self, text: str) -> None:
        self.counts["failed"] += 1
        self.problems.append(f"{threading.current_thread().name}: {text}")

    def restart(self) -> None:
        """Stop or kill all processes, and restart them."""
        self._is_down = True
        self.server.kill() if self.restart_count % 2 else self.server.stop()
        self.restart_count += 1
        self.server.start()
        self._is_down, self._up_at = False, monotonic()

    def timed(self, name: str, began: float) -> None:
        """Record a duration, unless a restart occurred in between."""
        if not self._is_down and began > self._up_at:
            self.took_s[name].append(monotonic() - began)

    def window(self) -> dict[str, list[float]]:
        """Return the durations since the last call."""
        took_s, self.took_s = self.took_s, {name: [] for name in TIMED}
        return took_s


class Client(threading.Thread):
    """Calls ``step`` once per ``pause_s``. It catches up at most one second."""

    def __init__(self, soak: Soak, topic: str = "") -> None:
        super().__init__(name=f"{type(self).__name__} {topic}", daemon=True)
        self.soak, self.topic, self.rng = soak, topic, random.Random(topic)
        self.client = Topics(soak.url, key="", on_pause=soak.failed)
        self.iterations, self.pause_s = 0, 0.0

    def run(self) -> None:
        due = monotonic()
        try:
            while not self.soak.ending.is_set():
                self.step()
                self.iterations += 1
                due = max(due + self.pause_s, monotonic() - 1.0)
                self.soak.ending.wait(max(0.0, due - monotonic()))
        except Exception as error:
            self.soak.wrong(f"ended by {error!r}")
        self.close()

    def close(self) -> None:
        self.client.close()

    def step(self) -> None:
        raise NotImplementedError


class Writer(Client):
    """Appends to one topic."""

    def step(self) -> None:
        first, size = self.soak.next[self.topic], 50 if self.iterations % 4 == 3 else 1
        numbers = range(first, first + size)
        self.soak.next[self.topic] += size
        began, size_of = monotonic(), self.rng.randrange
        try:
            self.append([{"data": [each, began, "x" * size_of(3000)]} for each in numbers])
            self.soak.timed("appends", began)
        except ConnectionLost as failure:  # the append had no key
            self.soak.uncertain.update((self.topic, number) for number in numbers)
            self.soak.failed(failure)
        self.soak.counts["records"] += size

    def append(self, records: list[Any]) -> None:
        key = calls.AUTO if self.iterations % 2 else None
        self.client.topic(self.topic).append(records=records, key=key)


class SocketWriter(Writer):
    """Appends by WebSocket, without keys."""

    socket: Socket | None = None

    def close(self) -> None:
        super().close()
        self.disconnect()

    def disconnect(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def append(self, records: list[Any]) -> None:
        try:
            self.socket = self.socket or Socket(self.soak.server.address)
            fields = {"topic": self.topic, "records": records}
            reply = self.socket.request("publish", "p", **fields)
            while reply.get("code") == "throttled":
                self.soak.failed(Throttled(str(reply)))
                sleep(RETRY_S)
                reply = self.socket.request("publish", "p", **fields)
            assert reply["op"] == "ack", reply
        except BROKEN as error:
            self.disconnect()
            sleep(RETRY_S)
            raise ConnectionLost(repr(error)) from error


class Reader(Client):
    """Follows a topic by long polls. Its records are those of ``source``."""

    def __init__(self, soak: Soak, topic: str, source: str = "") -> None:
        super().__init__(soak, topic)
        self._source, self._next, self._restart_count = source or topic, 0, 0

    def step(self) -> None:
        with closing(self.shown()) as shown:
            for data in shown:
                if not self.take(*data):
                    return

    def shown(self) -> Generator[Any]:
        """Yield the data of the received records."""
        return self.data_of(self.client.topic(self.topic).read(follow=True))

    def data_of(self, events: Iterable[Event]) -> Generator[Any]:
        for event in events:
            if isinstance(event, Record):
                yield event.data
            elif isinstance(event, Tombstone) and not (self.is_lossy and self.soak.restart_count):
                self.soak.wrong(f"lost: {event}")

    @property
    def is_lossy(self) -> bool:
        return self._source == "ephemeral"

    def take(self, number: int, sent_at: float, _: str) -> bool:
        """Check that this record is the next one. Return whether to continue after it."""
        soak = self.soak
        if self._source == self.topic and number != END:
            soak.timed("live", sent_at)
        last = soak.next[self._source] if number == END else number
        if self.is_lossy and self._restart_count != soak.restart_count:
            self._restart_count, self._next = soak.restart_count, last
        while self._next < last and (self._source, self._next) in soak.uncertain:
            self._next += 1
        if self._next != last:
            soak.wrong(f"record {last} received, {self._next} expected")
        self._next = last + 1
        soak.counts["seen"] += number != END
        return number != END


class StreamReader(Reader):
    """Follows a topic by an event stream."""

    def shown(self) -> Generator[Any]:
        with self.client.watch(self.topic) as watch:
            yield from self.data_of(watch)


class SocketReader(Reader):
    """Follows a topic by WebSocket."""

    def shown(self) -> Generator[Any]:
        seq = 0
        while True:
            try:
                with Socket(self.soak.server.address, timeout_s=TIMEOUT_S) as socket:
                    socket.send_command("subscribe", "s", topic=self.topic, from_seq=seq)
                    while True:
                        message = socket.message()
                        if message.get("code") == "throttled":  # the records arrive later
                            self.soak.failed(Throttled(str(message)))
                            continue
                        assert message["op"] in ("subscribed", "caught_up", "record"), message
                        for record in message.get("records", ()):
                            seq = record["$seq"]
                            yield record["data"]
            except BROKEN as error:
                self.soak.failed(error)
                sleep(RETRY_S)


class JobMaker(Client):
    """Appends jobs."""

    def step(self) -> None:
        jobs = range(4 * self.iterations, 4 * self.iterations + 4)
        self.soak.jobs.update(jobs)
        self.client.queue("jobs").append(*jobs)
        self.soak.counts["jobs"] += 4


class JobWorker(Client):
    """Claims jobs, acks most of them, and nacks the others until they are dead letters."""

    def step(self) -> None:
        queue = self.client.queue("jobs")
        began = monotonic()
        jobs = queue.claim(NODE, 20, lease=10.0)
        self.soak.timed("claims", began)
        bad = [job for job in jobs if job.data % 50 == 0]
        good = [job for job in jobs if job.data % 50]
        if bad:
            queue.nack(NODE, *bad, error="a fiftieth")
        skipped = queue.ack(NODE, *good) if good else []
        for job in good:
            if job.seq in skipped:  # retried after a restart: it may have been settled
                self.soak.uncertain_jobs.add(job.data)
            elif job.data not in self.soak.jobs:
                self.soak.wrong(f"job {job.data} is done twice")
            else:
                self.soak.jobs.discard(job.data)


class DeadLetterWorker(Client):
    """Claims dead letters, and acks them."""

    def step(self) -> None:
        with self.client.queue("dead").worker(lease=10.0) as worker:
            for job in worker:
                with job:
                    self.soak.jobs.discard(job.data)
                    self.soak.counts["dead letters"] += job.data != END
                if job.data == END:
                    return


class Deleter(Client):
    """Appends with tags, and deletes by tag and by seq."""

    def step(self) -> None:
        topic = self.client.topic("deletes")
        records = [{"data": number, "tag": f"t{number % 5}"} for number in range(10)]
        first = topic.append(records=records).first_seq
        topic.delete(tag="t3")
        if (left := topic.delete(before=max(0, first - 50)).count) > 80:
            self.soak.wrong(f"{left} records are left")


class Churner(Client):
    """Creates a topic or a queue with a router, writes, reads, and deletes it."""

    def step(self) -> None:
        client, name = self.client, f"churn-{self.iterations % 20}"
        topic = client.queue(name) if self.iterations % 2 else client.topic(name)
        topic.put(durability=CLASSES[1 + self.iterations % 3])
        client.put_router(name, name, "sink")
        topic.append(*range(5))
        found = [event.data for event in topic.read() if isinstance(event, Record)]
        if found != [*range(5)]:
            self.soak.wrong(f"{name} holds {found}")
        client.drop_router(name)
        topic.drop()


class Browser(Client):
    """Reads old pages."""

    def step(self) -> None:
        topic = self.client.topic(self.rng.choice(["disk", "fsync", "mid", "sink"]))
        state = topic.state()
        (*_,) = topic.read(self.rng.randint(state.earliest_seq - 1, state.head_seq), limit=50)


def fill(url: str, megabytes: int) -> None:
    """Write until the log files have reached their final size (`decisions/0053`)."""
    with Topics(url, key="") as client:
        for number in range(megabytes):
            topic = client.topic(f"fill-{number % 8}")
            topic.append("x" * 999_900, config={"cap_bytes": 1 << 20})
        for number in range(8):
            client.topic(f"fill-{number}").drop()


def clients(soak: Soak) -> list[Client]:
    """Create all clients with their topics."""
    with Topics(soak.url, key="") as client:
        for durability in CLASSES:
            client.topic(durability).put(durability=durability, cap_bytes=CAP_BYTES)
        for topic in ("mid", "out", "fan"):
            client.topic(topic).put(cap_bytes=CAP_BYTES)
        for topic in ("aging", "sink"):
            client.topic(topic).put(ttl_ms=30_000)
        client.queue("dead").put()
        client.queue("jobs").put(max_deliveries=3, dead_letter="dead")
        for source, dest in (("disk", "mid"), ("mid", "out"), ("disk", "fan"), ("disk", "aging")):
            client.put_router(f"{source}-{dest}", source, dest)
    kinds = (JobMaker, JobWorker, DeadLetterWorker, Deleter, Churner, Browser)
    return [
        *(Writer(soak, topic) for topic in ("ephemeral", "disk", "fsync")),
        SocketWriter(soak, "memory"),
        *(StreamReader(soak, topic) for topic in ("ephemeral", "fsync")),
        *(StreamReader(soak, "out", "disk"), Reader(soak, "fan", "disk")),
        *(Reader(soak, "disk"), SocketReader(soak, "memory")),
        *(kind(soak) for kind in kinds),
    ]


def finish(soak: Soak, all_clients: Iterable[Client]) -> None:
    """Stop all clients, and report the remaining differences."""
    followers = [client for client in all_clients if isinstance(client, Reader | DeadLetterWorker)]
    soak.ending.set()
    _join(set(all_clients) - set(followers))
    with Topics(soak.url, key="", on_pause=soak.failed) as client:
        for topic in CLASSES:
            client.topic(topic).append([END, monotonic(), ""])
        worker, until = JobWorker(soak), monotonic() + TIMEOUT_S
        while (left := soak.jobs - soak.uncertain_jobs) and monotonic() < until:
            worker.step()
            sleep(RETRY_S)
        worker.close()
        client.queue("dead").append(END)
        _join(followers)
        if left:
            soak.wrong(f"{len(left)} jobs are not done, as {min(left)}")
        for name in ("jobs", "dead"):
            if (queue := client.queue(name).state().queue) and (queue.ready or queue.in_flight):
                soak.wrong(f"{name} has {queue}")


def _join(some: Iterable[Client]) -> None:
    for client in some:
        client.join(TIMEOUT_S)
        if client.is_alive():
            client.soak.wrong(f"{client.name} hangs")

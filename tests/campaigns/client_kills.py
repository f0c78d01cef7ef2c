"""The Python client while processes of the server are killed and the program forks.

Runs as a program: ``python -m tests.campaigns.client_kills --kills 20 --forks 20``. A producer, a
publisher, a watch with a cursor and a worker share one client. At the end each sent record must be
in its topic once and in order, the watch must have seen each record once, and each job must have
been handled, and never again after its ack. Forked children call the client of their parent and
must get their own responses.

After each kill a separate program gets Ctrl-C at a random moment, often while the server is not
running. The longest time until such a program exits is reported.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.campaigns.killer import EVERYTHING, Killer, Summary, program
from tests.support.server import ROOT, Server
from topics.client import Event, Job, Record, Topics

SHARDS = 2
FORKS, STOPPED = "forked children", "stopped programs"
WANTED = (FORKS, STOPPED)
SETTLE_S = 120.0
SHUTDOWN_MAX_S = 2.0
LAST = -1
SETUP = "import sys, time\nfrom topics.client import Topics\nclient = Topics(sys.argv[1])\n"
PROGRAMS = {
    "worker": "client.queue('other').worker().run(lambda job: time.sleep(60), concurrency=1)",
    "workers": "client.queue('other').worker().run(lambda job: time.sleep(60), concurrency=3)",
    "watch": "with client.cursor('c') as c:\n for _ in client.watch('published', cursor=c): pass",
    "producer": "with client.topic('other').producer() as p:\n while True: p.send(1)",
    "publisher": "with client.publisher() as p:\n while True: p.publish('other', 1)",
}


class Actors:
    """Threads that use one client, and the records and jobs that they sent, read and handled."""

    def __init__(self, url: str) -> None:
        self.client = Topics(url, on_pause=lambda *_: None)
        self.worker = self.client.queue("jobs").worker(lease=5.0)
        self.is_over = threading.Event()
        self.sent: Counter[str] = Counter()
        self.seen: dict[str, list[int]] = {"produced": [], "published": []}
        self.acks: defaultdict[int, list[bool]] = defaultdict(list)  # by job
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), daemon=True)
            for run in (self._produce, self._publish, self._watch, self._work)
        ]

    def start(self) -> None:
        for topic in self.seen:
            self.client.topic(topic).put(durability="fsync")
        self.client.queue("jobs").put(durability="fsync", leases_durable=True)
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        self.is_over.set()
        for thread in self._threads[:2]:
            thread.join(SETTLE_S)
        for topic in self.seen:
            self.client.topic(topic).append(LAST)
        self._threads[2].join(SETTLE_S)
        until = time.monotonic() + SETTLE_S
        while len(self.acks) < self.sent["jobs"] and time.monotonic() < until:
            # a job whose claim response was lost becomes ready when its lease expires
            time.sleep(0.05)
        self.worker.stop()
        self._threads[3].join(SETTLE_S)
        self.failures += [f"{each.name} does not stop" for each in self._threads if each.is_alive()]

    def problems(self) -> list[str]:
        """Compare the sent records with the topics, the watch and the handled jobs."""
        found = [*self.failures]
        for topic, seen in self.seen.items():
            stored = data_of(self.client.topic(topic).read())
            expected = [*range(self.sent[topic]), LAST]
            if seen != stored:
                found.append(f"{topic}: seen {difference(seen, stored)}")
            # A publisher may store a record that was refused temporarily after later ones.
            if topic == "published":
                stored, expected = sorted(stored), sorted(expected)
            if stored != expected:
                found.append(f"{topic}: stored {difference(stored, expected)}")
        if lost := {*range(self.sent["jobs"])} - self.acks.keys():
            found.append(f"jobs lost: {lost}")
        # A lease may expire while the server is down, so a job may run again before its ack.
        if repeated := [job for job, results in self.acks.items() if True in results[:-1]]:
            found.append(f"jobs that ran again after their ack: {repeated}")
        return found

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as failure:
            self.failures.append(f"{run.__name__}: {failure!r}")

    def _produce(self) -> None:
        with self.client.topic("produced").producer() as producer:
            while not self.is_over.wait(0.002):
                producer.send(self.sent["produced"])
                self.sent["produced"] += 1
                self.client.queue("jobs").append(self.sent["jobs"])
                self.sent["jobs"] += 1

    def _publish(self) -> None:
        with self.client.publisher() as publisher:
            while not self.is_over.wait(0.001):
                publisher.publish("published", self.sent["published"])
                self.sent["published"] += 1

    def _watch(self) -> None:
        left = {*self.seen}
        with self.client.cursor("seen") as cursor:
            watch = self.client.watch(*self.seen, cursor=cursor)
            while left:
                event = watch.next()
                if isinstance(event, Record):
                    self.seen[event.topic].append(event.data)
                    if event.data == LAST:
                        left.remove(event.topic)

    def _work(self) -> None:
        def handle(job: Job) -> None:
            results = self.acks[job.data]
            results.append(False)
            results[-1] = job.ack()

        self.worker.run(handle, concurrency=4)


def data_of(events: Iterable[Event]) -> list[Any]:
    return [event.data for event in events if isinstance(event, Record)]


def difference(found: list[int], expected: list[int]) -> str:
    lost, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if not lost and not more:
        return "out of order"
    return f"{len(found)} records: {[*lost][:5]} lost, {[*more][:5]} duplicated"


def fork(client: Topics, number: int) -> int:
    """Start a child that uses the client. Its status is 0 if it got its own responses."""
    if (pid := os.fork()) == 0:
        status = 1
        with suppress(BaseException):
            topic = client.topic(f"child-{number}")
            topic.append(number)
            found = [data_of(topic.read()) for _ in range(5)]
            status = int(found != [[number]] * 5)
        os._exit(status)
    return pid


def stop_a_program(url: str, name: str, after_s: float) -> tuple[float, str]:
    """Run a program, press Ctrl-C, and return the time until it has ended, and its output."""
    ready = "print('ready', flush=True)\n"
    running = subprocess.Popen(
        [sys.executable, "-c", SETUP + ready + PROGRAMS[name], url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    running.stdout.readline()
    time.sleep(after_s)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    try:
        _, errors = running.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        running.kill()
        return 60.0, running.communicate()[1]
    return time.monotonic() - began, errors


def campaign(
    data_dir: Path, seed: int, *, kills: int, forks: int, shutdown_s: float = SHUTDOWN_MAX_S
) -> Summary:
    """Kill and fork. An exception that the client should have handled is an error."""
    summary, rng = Summary(seed), random.Random(seed)
    with Server(data_dir, shards=SHARDS) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        url = "http://{}:{}".format(*server.address)
        actors, killer = Actors(url), Killer(server, SHARDS, rng)
        actors.start()
        actors.client.queue("other").put()
        actors.client.queue("other").append(1, 2, 3)
        children, longest = [], 0.0
        for number in range(max(kills, forks)):
            time.sleep(rng.random())
            if number < forks:
                children.append(fork(actors.client, number))
            if number >= kills:
                continue
            name = rng.choice([*PROGRAMS])
            is_down = rng.random() < 0.5
            if is_down:
                server.kill()
                killer.kills[EVERYTHING] += 1
            else:
                killer.kill()
            took_s, errors = stop_a_program(url, name, rng.random())
            if is_down:
                server.start()
            summary.counts[STOPPED] += 1
            longest = max(longest, took_s)
            if took_s > shutdown_s:
                problem = f"{name} took {took_s:.1f} s to stop ({is_down=}):\n{errors}"
                summary.problems.append(problem)
        statuses = [os.waitpid(pid, 0)[1] for pid in children]
        summary.counts[FORKS] = len(statuses)
        summary.problems += [f"child {n} failed" for n, status in enumerate(statuses) if status]
        actors.finish()
        summary.problems += actors.problems()
        actors.client.close()
        summary.counts.update(actors.sent)
        summary.killed = f"{killer}; longest stop {longest:.2f} s"
    return summary


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, kills=20, forks=20))

"""The client for threads against a server: producers and workers."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import wait

import pytest

from tests.support.program import Program
from topics.client import Conflict, Invalid, Job, Record, Topics, Worker
from topics.client.calls import Caller
from topics.client.producer import Producer
from topics.client.values import QueueCounts


def counts(client: Topics, name: str) -> QueueCounts:
    queue = client.queue(name).state().queue
    assert queue is not None
    return queue


def test_sends_keep_their_order_and_become_few_requests(client: Topics, name: str) -> None:
    with client.topic(name).producer(name="p") as producer:
        futures = [producer.send(number, tag=f"t{number}") for number in range(3000)]
        producer.flush()
        assert [future.result(0) for future in futures] == [*range(1, 3001)]
    records = [event for event in client.topic(name).read() if isinstance(event, Record)]
    assert [(record.data, record.tag) for record in records[::999]] == [
        (number, f"t{number}") for number in (0, 999, 1998, 2997)
    ]
    # The keys are NAME:NUMBER: so few that the last of them is known.
    assert client.topic(name).append("again", key="p:3").deduped


def test_a_failure_is_that_of_its_batch(client: Topics, name: str) -> None:
    topic = client.topic(name)
    topic.put(cap_records=2, discard="reject")
    with topic.producer(max_records=1) as producer:
        futures = [producer.send(number) for number in range(4)]
    assert [future.exception() is None for future in futures] == [True, True, False, False]
    assert isinstance(futures[2].exception(), Conflict)
    with topic.producer() as producer:
        bad = producer.send(1, tag=5)
    assert isinstance(bad.exception(), Invalid)
    with pytest.raises(ValueError, match="closed"):
        producer.send(1)


def test_send_waits_while_too_much_is_unacked(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    append = Producer._append
    monkeypatch.setattr(Producer, "_append", lambda *args: go.wait(30) and append(*args))
    with client.topic(name).producer(max_unacked=2000, linger=0) as producer:
        first = [producer.send("x" * 900), producer.send("x" * 900)]
        sender = threading.Thread(target=producer.send, args=("x" * 900,))
        sender.start()
        sender.join(0.2)
        assert sender.is_alive()
        go.set()
        sender.join(30)
        assert wait(first, 30).done == {*first}
    assert client.topic(name).state().count == 3


def test_a_job_is_acked_or_comes_again_with_its_reason(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append("good", "bad")
    seen = []
    with queue.worker(lease=5.0, drain=True) as worker:
        for job in worker:
            with job:
                seen.append((job.data, job.deliveries))
                if job.data == "bad":
                    raise ValueError("no good")
    assert seen == [("good", 1), ("bad", 1)]
    (again,) = queue.claim("me", wait=10)  # a second later
    assert (again.data, again.deliveries) == ("bad", 2)
    assert again.last_error == "ValueError: no good"


def test_a_job_may_be_settled_by_hand(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2)
    with queue.worker(concurrency=2, lease=5.0, drain=True) as worker:
        for job in worker:
            with job:
                if job.deliveries == 1:
                    assert job.nack(delay=0)
                    continue
                assert job.ack()
    assert counts(client, name) == QueueCounts(ready=0, in_flight=0, dead_lettered=0)


def test_a_job_that_takes_three_leases_of_pure_cpu_runs_once(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append("long")
    with queue.worker(lease=1.0, drain=True) as worker:
        for job in worker:
            with job:
                until = time.monotonic() + 3.0
                while time.monotonic() < until:
                    sum(range(1000))
                assert not job.lost
                assert queue.claim("thief") == []
    state = queue.state()
    assert (state.count, counts(client, name).in_flight) == (0, 0)


@pytest.mark.slow
def test_an_extension_that_fails_is_tried_again_soon(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def extend(self: Worker, own: Caller) -> bool:
        tries.append(time.monotonic())
        return len(tries) > 1

    monkeypatch.setattr(Worker, "_extend", extend)
    monkeypatch.setattr("topics.client.sync.worker.EXTEND_AGAIN_S", 0.01)
    with client.queue(name).worker(lease=9.0):
        until = time.monotonic() + 30
        while len(tries) < 2 and time.monotonic() < until:
            time.sleep(0.02)
    assert tries[1] - tries[0] < 2.5  # far less than a third of a lease


def test_a_lost_job_is_not_acked(client: Topics, name: str) -> None:
    """Its lease has ended while the program stood still, and another worker has it."""
    queue = client.queue(name)
    queue.put()
    queue.append("x")
    with queue.worker(lease=60.0, drain=True) as worker:
        (job,) = worker
        (lease,) = queue.leases()
        assert lease.node == worker.node
        queue.nack(worker.node, job.record)
        (stolen,) = queue.claim("thief")
        assert not job.ack()
        job = Job(worker, job.record, 0.0)
        assert job.lost
        assert not job.ack()
        assert queue.ack("thief", stolen) == []


def test_jobs_that_were_not_begun_are_given_back(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(*range(5))
    with queue.worker(concurrency=5, lease=60.0) as worker:
        for job in worker:
            with job:
                assert counts(client, name).in_flight == 5
                worker.stop()
    assert counts(client, name) == QueueCounts(ready=4, in_flight=0, dead_lettered=0)


def test_threads_share_a_worker(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(*range(40))
    done: list[int] = []
    together = threading.Barrier(4, timeout=30)

    def work() -> None:
        for number, job in enumerate(worker):
            with job:
                if number == 0:
                    together.wait()
                done.append(job.data)

    with queue.worker(concurrency=8, lease=10.0, drain=True) as worker:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == [*range(40)]


def test_a_sigterm_while_it_stops_waits_for_nothing(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notify_all(self: threading.Condition) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)
        self.notify_all()

    with client.queue(name).worker() as worker:
        monkeypatch.setattr(threading.Condition, "notify_all", notify_all)
        worker.stop()
        assert worker.is_stopped()


PROGRAM = """
import sys, time
from topics.client import Topics
with Topics(sys.argv[1]) as client, client.queue(sys.argv[2]).worker(concurrency=3) as worker:
    print("begun", flush=True)
    for job in worker:
        with job:
            print("job", flush=True)
            time.sleep(float(sys.argv[3]))
print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [0, 3])
def test_sigterm_ends_a_worker_behind_its_job(
    client: Topics, url: str, name: str, jobs: int
) -> None:
    queue = client.queue(name)
    queue.put()
    if jobs:
        queue.append(*range(jobs))
    command = [sys.executable, "-c", PROGRAM, url, name, "1"]
    with Program(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        if jobs:
            assert program.stdout.readline() == "job\n"
        else:
            time.sleep(0.5)  # it waits for jobs, or will
        began = time.monotonic()
        assert program.ended_by(signal.SIGTERM) == ("ended\n", None)
        assert program.returncode == 0
        assert time.monotonic() - began < 10  # far less than the wait of a claim
    assert counts(client, name) == QueueCounts(ready=max(jobs - 1, 0), in_flight=0, dead_lettered=0)

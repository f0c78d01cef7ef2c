"""The client for threads against a server: producers and workers."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import url_of
from tests.support.program import Program
from tests.support.server import Server
from topics.client import (
    Conflict,
    ConnectionLost,
    Invalid,
    Job,
    Record,
    Refused,
    Retry,
    Topics,
    Worker,
)
from topics.client.sync.caller import Caller
from topics.client.sync.producer import Producer
from topics.client.values import QueueCounts


def counts(client: Topics, name: str) -> QueueCounts:
    queue = client.queue(name).state().queue
    assert queue is not None
    return queue


def test_sent_records_keep_their_order_and_are_batched_into_few_requests(
    client: Topics, name: str
) -> None:
    with client.topic(name).producer(name="p") as producer:
        futures = [producer.send(number, tag=f"t{number}") for number in range(3000)]
        producer.flush()
        assert [future.result(0) for future in futures] == [*range(1, 3001)]
    records = [event for event in client.topic(name).read() if isinstance(event, Record)]
    assert [(record.data, record.tag) for record in records[::999]] == [
        (number, f"t{number}") for number in (0, 999, 1998, 2997)
    ]
    # The keys are NAME:NUMBER, so the number of the last one shows how few requests were made.
    assert client.topic(name).append("again", key="p:3").deduped


def test_a_failure_is_reported_for_its_own_batch_only(
    client: Topics, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = client.topic(name)
    topic.put(cap_records=2, discard="reject")
    caplog.set_level("WARNING", "topics.client")
    producer = topic.producer(max_records=1)
    futures = [producer.send(number) for number in range(4)]
    with pytest.raises(ExceptionGroup, match="2 of 4 records failed") as failed:
        producer.close()
    assert [future.exception() is None for future in futures] == [True, True, False, False]
    assert isinstance(futures[2].exception(), Conflict)
    assert all(isinstance(each, Conflict) for each in failed.value.exceptions)
    assert caplog.text.count("1 of its records failed: topic_full") == 2
    with pytest.raises(ValueError, match="closed"):
        producer.send(1)


def test_a_refused_record_does_not_fail_the_others_of_its_batch(client: Topics, name: str) -> None:
    topic = client.topic(name)
    bad: dict[int, dict[str, Any]] = {
        0: {"meta": {"a": "x" * 17_000}},
        7: {"tag": "t" * 300},
        8: {"node": "n" * 300},
        500: {"tag": 5},
        999: {"meta": {str(number): 0 for number in range(65)}},
    }
    producer = topic.producer(linger=60, max_records=1000, name="p")
    futures = [producer.send(number, **bad.get(number, {})) for number in range(1000)]
    with pytest.raises(ExceptionGroup, match="5 of 1000 records failed"):
        producer.close()
    good = [number for number in range(1000) if number not in bad]
    assert [event.data for event in topic.read() if isinstance(event, Record)] == good
    assert [futures[number].result() for number in good] == [*range(1, 996)]
    assert all(isinstance(futures[number].exception(), Invalid) for number in bad)


def test_records_that_are_sent_before_the_with_block_keep_their_order(
    client: Topics, name: str
) -> None:
    producer = client.topic(name).producer(max_records=1)
    producer.send(0)
    with producer:
        for number in range(1, 50):
            producer.send(number)
    stored = [event.data for event in client.topic(name).read() if isinstance(event, Record)]
    assert stored == [*range(50)]


def test_a_send_cannot_be_cancelled(client: Topics, name: str) -> None:
    with client.topic(name).producer() as producer:
        futures = [producer.send(number) for number in range(4)]
        assert not futures[1].cancel()
    assert [future.result() for future in futures] == [1, 2, 3, 4]


@pytest.mark.parametrize("way", ["flush", "close", "with", "deadline"])
def test_a_producer_never_blocks_forever_without_a_server(way: str) -> None:
    retry = Retry(deadline=0.5 if way == "deadline" else 600.0)
    with Topics("http://127.0.0.1:1", retry=retry) as client:
        producer = client.topic("t").producer(max_records=1)
        began = time.monotonic()
        futures = [producer.send(number) for number in range(20)]
        if way == "flush":
            with pytest.raises(TimeoutError):
                producer.flush(timeout=0.2)
        if way == "with":
            with pytest.raises(KeyboardInterrupt), producer:
                raise KeyboardInterrupt
        else:
            with pytest.raises(ExceptionGroup, match="20 of 20 records failed"):
                producer.close(None if way == "deadline" else 0.2)
    assert time.monotonic() - began < 10
    assert all(isinstance(future.exception(), ConnectionLost) for future in futures)


UNFLUSHED_PRODUCER = """
import sys
from topics.client import Topics
client = Topics(sys.argv[1])
producer = client.topic(sys.argv[2]).producer(linger=30)
for number in range(100):
    producer.send(number)
"""


@pytest.mark.slow
def test_unflushed_records_are_sent_at_exit(client: Topics, url: str, name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", UNFLUSHED_PRODUCER, url, name],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0
    assert f"producer of {name} not closed before exit, its records are sent now" in run.stderr
    assert client.topic(name).state().count == 100


# forks in a process with threads
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_producer_does_not_work_in_a_forked_process(client: Topics, name: str) -> None:
    with client.topic(name).producer() as producer:
        producer.send(1)
        if (pid := os.fork()) == 0:
            status = 1
            with suppress(BaseException):
                try:
                    producer.send(2)
                except RuntimeError:
                    status = 0
            os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
    assert client.topic(name).state().count == 1


def test_a_publisher_sends_to_many_topics(client: Topics, name: str) -> None:
    queue = client.queue(f"{name}.q")
    queue.put()
    with client.publisher() as publisher:
        sent = [publisher.publish(f"{name}.{number % 3}", number, tag="t") for number in range(99)]
        delayed = publisher.publish(queue.name, "later", delay=60.0)
        publisher.flush(timeout=60)
        assert [future.result(0) for future in sent[::33]] == [1, 12, 23]
        assert delayed.result(0) == 1
    for number in range(3):
        events = client.topic(f"{name}.{number}").read()
        found = [event.data for event in events if isinstance(event, Record)]
        assert found == [*range(number, 99, 3)]
    assert counts(client, queue.name).delayed == 1


def test_a_refused_publish_does_not_fail_other_publishes(client: Topics, name: str) -> None:
    client.topic(f"{name}.full").put(cap_records=1, discard="reject")
    publisher = client.publisher()
    sent = [
        publisher.publish(f"{name}.full", 1),
        publisher.publish(f"{name}.full", 2),
        publisher.publish(f"{name}.full", 3, tag="t" * 300),
        publisher.publish("no name", 4),
        publisher.publish(name, 5),
    ]
    with pytest.raises(ExceptionGroup, match="3 of 5 records failed"):
        publisher.close()
    kinds = [type(future.exception()) for future in sent]
    assert kinds == [type(None), Conflict, Invalid, Invalid, type(None)]


def test_a_publisher_with_a_wrong_key_fails_quickly(tmp_path: Path) -> None:
    with Server(tmp_path / "data", api_keys="k") as server, Topics(url_of(server)) as client:
        publisher = client.publisher()
        sent = publisher.publish("t", 1)
        with pytest.raises(ExceptionGroup):
            publisher.close()
        assert isinstance(sent.exception(), Refused)


def test_a_publisher_never_blocks_forever_without_a_server() -> None:
    with Topics("http://127.0.0.1:1") as client:
        publisher = client.publisher(max_unacked=2000)
        sent = publisher.publish("t", "x" * 1900)
        sender = threading.Thread(target=suppressed, args=(publisher.publish, "t", "x" * 1900))
        sender.start()
        sender.join(0.1)
        assert sender.is_alive()
        with pytest.raises(ExceptionGroup):
            publisher.close(timeout=0.2)
        sender.join(30)
        assert not sender.is_alive()
        assert isinstance(sent.exception(), ConnectionLost)


def test_a_publisher_accepts_records_during_pauses() -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # the threads change at almost every bytecode
    try:
        retry = Retry(deadline=3600.0, first=0.001, most=0.002)
        with Topics("http://127.0.0.1:1", retry=retry, on_pause=lambda *_: None) as client:
            publisher = client.publisher()
            sent = [publisher.publish("t", number) for number in range(10_000)]
            assert not any(each.done() for each in sent)
            with pytest.raises(ExceptionGroup, match="10000 of 10000 records failed"):
                publisher.close(timeout=0.1)
    finally:
        sys.setswitchinterval(interval_s)


def test_an_exception_of_on_pause_fails_the_unacknowledged_records() -> None:
    def on_pause(*_: object) -> None:
        raise LookupError("on_pause")

    with Topics("http://127.0.0.1:1", on_pause=on_pause) as client:
        publisher, producer = client.publisher(), client.topic("t").producer()
        for _ in range(2):  # they continue after the first exception
            for sent in (publisher.publish("t", 1), producer.send(1)):
                assert isinstance(sent.exception(30), LookupError)
        for sender in (publisher, producer):
            with pytest.raises(ExceptionGroup, match="2 of 2 records failed"):
                sender.close()


def suppressed(call: Callable[..., object], *arguments: object) -> None:
    with suppress(ValueError):
        call(*arguments)


def test_send_blocks_while_too_much_is_unacknowledged(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    request = Producer._request
    monkeypatch.setattr(Producer, "_request", lambda *args: go.wait(30) and request(*args))
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


def test_a_job_is_acked_or_redelivered_with_the_error_text(client: Topics, name: str) -> None:
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
    (again,) = queue.claim("me", wait=10)  # one second later
    assert (again.data, again.deliveries) == ("bad", 2)
    assert again.last_error == "ValueError: no good"


def test_a_job_may_be_settled_explicitly(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2)
    with queue.worker(lease=5.0, drain=True) as worker:
        for job in worker:
            with job:
                if job.deliveries == 1:
                    assert job.nack(delay=0)
                    continue
                assert job.ack()
    assert counts(client, name) == QueueCounts(ready=0, in_flight=0, dead_lettered=0)


def test_a_job_that_computes_for_three_lease_durations_runs_once(client: Topics, name: str) -> None:
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
                assert queue.claim("other") == []
    state = queue.state()
    assert (state.count, counts(client, name).in_flight) == (0, 0)


@pytest.mark.slow
def test_a_failed_lease_extension_is_retried_quickly(
    client: Topics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    def extend(self: Worker, own: Caller) -> bool:
        tries.append(time.monotonic())
        return len(tries) > 1

    monkeypatch.setattr(Worker, "_extend", extend)
    monkeypatch.setattr("topics.client.sync.worker.EXTEND_RETRY_S", 0.01)
    with client.queue(name).worker(lease=9.0):
        until = time.monotonic() + 30
        while len(tries) < 2 and time.monotonic() < until:
            time.sleep(0.02)
    assert tries[1] - tries[0] < 2.5  # far less than a third of a lease


def test_a_job_whose_lease_was_lost_is_not_acked(client: Topics, name: str) -> None:
    """Its lease expired while the program was stopped, and another worker has leased it."""
    queue = client.queue(name)
    queue.put()
    queue.append("x")
    with queue.worker(lease=60.0, drain=True) as worker:
        (job,) = worker
        (lease,) = queue.leases()
        assert lease.node == worker.node
        queue.nack(worker.node, job.record)
        (other_lease,) = queue.claim("other")
        assert not job.ack()
        job = Job(worker, job.record, 0.0)
        assert job.lost
        assert not job.ack()
        assert queue.ack("other", other_lease) == []


def test_a_loop_leases_only_the_job_that_it_handles(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(*range(5))
    with queue.worker(lease=60.0) as worker:
        for job in worker:
            with job:
                assert counts(client, name).in_flight == 1
                worker.stop()
    assert counts(client, name) == QueueCounts(ready=4, in_flight=0, dead_lettered=0)


def test_run_handles_jobs_concurrently(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(*range(40))
    together, done = threading.Barrier(4, timeout=30), list[int]()

    def handle(job: Job) -> None:
        if job.data < 4:
            together.wait()
            assert counts(client, name).in_flight == 4
            together.wait()
        done.append(job.data)
        if job.data == 7:
            raise ValueError("no good")

    queue.worker(drain=True).run(handle, concurrency=4)
    assert sorted(done) == [*range(40)]
    (again,) = queue.claim("me", wait=10)
    assert (again.data, again.last_error) == (7, "ValueError: no good")
    with pytest.raises(ValueError, match="below 1"):
        queue.worker().run(handle, concurrency=0)


def test_a_handler_may_stop_its_worker(client: Topics, name: str) -> None:
    """It may do so even while another thread waits in a claim."""
    queue = client.queue(name)
    queue.put()
    queue.append("only")
    worker = queue.worker()

    def handle(_: Job) -> None:
        time.sleep(0.1)  # the other thread is likely to wait by now
        worker.stop()

    began = time.monotonic()
    worker.run(handle, concurrency=2)
    assert time.monotonic() - began < 10  # far less than the wait of a claim
    assert counts(client, name) == QueueCounts(ready=0, in_flight=0, dead_lettered=0)


def test_a_failed_claim_ends_run(client: Topics, name: str) -> None:
    client.topic(name).append(1)
    with pytest.raises(Conflict):
        client.queue(name).worker().run(print, concurrency=3)


def test_a_job_is_settled_once(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2)
    with queue.worker(drain=True) as worker:
        for job in worker:
            assert job.ack()
            assert job.ack()
            assert job.nack()
            assert (copy.copy(job).data, job.is_settled) == (job.data, True)
    assert counts(client, name) == QueueCounts(ready=0, in_flight=0, dead_lettered=0)


def test_a_worker_waits_for_an_unreachable_server_and_stops_quickly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "topics.client")
    with Topics("http://127.0.0.1:1") as client, client.queue("q").worker() as worker:
        loop = threading.Thread(target=lambda: [*worker])
        loop.start()
        while not caplog.messages and loop.is_alive():
            time.sleep(0.01)
        worker.stop()
        loop.join(10)
        assert not loop.is_alive()


def test_ctrl_c_releases_the_held_job(client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2)

    def handle(job: Job) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        queue.worker().run(handle)
    assert counts(client, name) == QueueCounts(ready=2, in_flight=0, dead_lettered=0)


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

    with queue.worker(lease=10.0, drain=True) as worker:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(done) == [*range(40)]


def test_a_sigterm_during_a_stop_does_not_deadlock(
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
def handle(job):
    sys.stdout.write("job\\n")  # one write: print would write the end of the line separately
    sys.stdout.flush()
    time.sleep(float(sys.argv[3]))
with Topics(sys.argv[1]) as client, client.queue(sys.argv[2]).worker() as worker:
    print("begun", flush=True)
    worker.run(handle, concurrency=int(sys.argv[4]))
print("ended", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("jobs", [0, 3])
def test_sigterm_ends_a_worker_after_its_jobs(
    client: Topics, url: str, name: str, jobs: int, concurrency: int
) -> None:
    queue = client.queue(name)
    queue.put()
    if jobs:
        queue.append(*range(jobs))
    command = [sys.executable, "-c", PROGRAM, url, name, "1", str(concurrency)]
    with Program(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        if jobs:
            for _ in range(concurrency):
                assert program.stdout.readline() == "job\n"
        else:
            time.sleep(0.5)  # the worker waits for jobs by then
        began = time.monotonic()
        assert program.ended_by(signal.SIGTERM) == ("ended\n", None)
        assert program.returncode == 0
        assert time.monotonic() - began < 10  # far less than the wait of a claim
    left = max(jobs - concurrency, 0)
    assert counts(client, name) == QueueCounts(ready=left, in_flight=0, dead_lettered=0)

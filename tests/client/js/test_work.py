"""`work` of topics.js, in a page of another origin and in Node.js."""

from __future__ import annotations

import pytest

from tests.client.conftest import url_of
from tests.client.js.conftest import KEY, Run
from tests.client.subscribing import InNode, of
from tests.support.queues import until
from tests.support.server import Server
from topics.client import Topics

pytestmark = pytest.mark.slow

WORK = """
let now = 0;
const running = work({ ...options, on: {
  status,
  failed: ({ job, error }) => say(["failed", [job.data, error.message]]),
  async job(job, lost) {
    now += 1;
    say(["job", { ...job, now }]);
    await new Promise((over) => setTimeout(over, options.takes_ms ?? 0));
    now -= 1;
    if (job.data === "bad" && job.deliveries < 3) throw new Error("too é" + "é".repeat(999));
  },
} });
"""
HOLD = """
const running = work({ ...options, on: { status, async job(job, lost) {
  say(["job", job]);
  await new Promise((over) => lost.addEventListener("abort", over));
  say(["lost", lost.reason.code]);
} } });
"""
LEASE_MS = 3000  # the lease is extended after 1 s, so that the machine may stall for 2 s


def ready(client: Topics, name: str) -> int:
    queue = client.topic(name).state().queue
    assert queue is not None
    return queue.ready


def left(client: Topics, name: str) -> int:
    return client.topic(name).state().count


def test_each_job_is_acked_and_at_most_concurrency_jobs_run_at_a_time(
    run: Run, guarded: Server, client: Topics, name: str
) -> None:
    client.queue(name).put()
    client.topic(name).append(*range(50))
    running = run(WORK, url=url_of(guarded), key=KEY, queue=name, concurrency=7, takes_ms=5)
    until(lambda: left(client, name) == 0)
    jobs = of(running.events(), "job")
    assert sorted(job["data"] for job in jobs) == [*range(50)]
    assert max(job["now"] for job in jobs) == 7
    assert {job["topic"] for job in jobs} == {name}
    client.topic(name).append("later")  # a waiting claim gets this job
    running.wait(lambda events: of(events, "job")[-1]["data"] == "later")
    assert [event["state"] for event in of(running.events(), "status")] == ["open"]


def test_a_failed_job_is_redelivered_with_its_error(
    run: Run, guarded: Server, client: Topics, name: str
) -> None:
    client.queue(name).put()
    client.topic(name).append("bad")
    running = run(WORK, url=url_of(guarded), key=KEY, queue=name)
    events = running.wait(lambda events: len(of(events, "job")) == 2)
    first, second = of(events, "job")
    assert (first["deliveries"], second["deliveries"]) == (1, 2)
    assert second["last_error"].startswith("Error: too é")
    assert len(second["last_error"].encode()) <= 1024
    assert next(data for data, _ in of(events, "failed")) == "bad"


def test_the_lease_of_a_long_job_is_extended(
    run: Run, guarded: Server, client: Topics, name: str
) -> None:
    client.queue(name).put()
    client.topic(name).append("long")
    options = {"url": url_of(guarded), "key": KEY, "queue": name, "lease_ms": LEASE_MS}
    running = run(HOLD, **options)
    (job,) = of(running.wait(lambda events: bool(of(events, "job"))), "job")
    until(lambda: next(iter(client.queue(name).leases())).deadline > job["deadline"] + 500)
    assert not of(running.events(), "lost")
    client.topic(name).delete(before=2)  # deletes the job
    events = running.wait(lambda events: bool(of(events, "lost")))
    assert of(events, "lost") == ["lease_lost"]
    client.topic(name).append("next")
    assert of(running.wait(lambda events: len(of(events, "job")) == 2), "job")[1]["data"] == "next"


def test_a_close_waits_for_running_jobs_and_claims_no_others(
    run: Run, guarded: Server, client: Topics, name: str
) -> None:
    client.queue(name).put()
    client.topic(name).append(1)
    program = """
      let finish;
      const running = work({ ...options, on: { status, async job() {
        say(["job", 1]);
        running.close().then(() => say(["closed", 1]));
        await new Promise((over) => { setTimeout(over, 100); });
        say(["finished", 1]);
      } } });
    """
    running = run(program, url=url_of(guarded), key=KEY, queue=name)
    events = running.wait(lambda events: bool(of(events, "closed")))
    assert [kind for kind, _ in events] == ["status", "job", "finished", "closed"]
    if isinstance(running, InNode):
        running.join()
    assert left(client, name) == 0
    client.topic(name).append(2)
    assert ready(client, name) == 1


def test_jobs_are_handled_over_restarts_and_kills(
    run: Run, guarded: Server, client: Topics, name: str
) -> None:
    client.queue(name).put(durability="fsync", lease_ms=LEASE_MS)
    client.topic(name).append(*range(300))
    options = {"url": url_of(guarded), "key": KEY, "queue": name, "lease_ms": LEASE_MS}
    running = run(WORK, **options, concurrency=4, takes_ms=1)
    for part, end in enumerate(("kill", "stop")):
        running.wait(lambda events, at=part * 100 + 1: len(of(events, "job")) >= at)  # type: ignore[misc]
        guarded.restart(end)
    until(lambda: left(client, name) == 0)
    events = running.events()
    assert {job["data"] for job in of(events, "job")} == {*range(300)}
    assert {event["state"] for event in of(events, "status")} == {"open", "waiting"}


@pytest.mark.parametrize(
    ("options", "status", "code"),
    [
        ({"key": "wrong"}, 401, "unauthorized"),
        ({"key": "reader"}, 403, "forbidden"),
        ({"queue": "client-none"}, 404, "topic_not_found"),
        ({"queue": "client-log"}, 409, "not_a_queue"),
    ],
)
def test_a_refusal_ends_the_worker(
    run: Run,
    guarded: Server,
    client: Topics,
    name: str,
    options: dict[str, str],
    status: int,
    code: str,
) -> None:
    client.queue(name).put()
    client.topic("client-log").put()
    running = run(WORK, **{"url": url_of(guarded), "key": KEY, "queue": name, **options})
    events = running.wait(bool)
    if isinstance(running, InNode):
        running.join()
    assert events == [("status", {"state": "closed", "status": status, "code": code})]

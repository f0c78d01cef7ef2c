"""The commands ``queue``: the reports of a queue, and the redrive of dead letters."""

from __future__ import annotations

import time

import pytest

from tests.cli.conftest import Run
from topics.cli import queues
from topics.client import Topics


@pytest.fixture
def filled(client: Topics, name: str) -> str:
    """A queue with two dead letters, one leased job and one ready job."""
    queue = client.queue(name)
    queue.put(max_deliveries=1, dead_letter=f"{name}.dead")
    queue.append(records=[{"data": {"n": n}, "tag": f"t{n}"} for n in range(3)])
    queue.append(records=[{"data": {"n": 3}, "delay_ms": 0}])
    queue.nack("me", *queue.claim("me", 2), error="boom")
    assert [job.seq for job in queue.claim("worker-a", 1, lease=600.0)] == [3]
    deadline = time.monotonic() + 30
    while [each.count for each in client.topics(f"{name}.dead")] != [2] or queue.state().count != 2:
        assert time.monotonic() < deadline, "the jobs did not become dead letters"
        time.sleep(0.02)
    return name


def test_the_list_contains_only_queues(topics: Run, client: Topics, filled: str) -> None:
    client.topic(f"{filled}.log").append(1)
    head, row = topics("queue", "ls", filled).out.splitlines()
    assert " ".join(head.split()) == "QUEUE READY IN FLIGHT WAITING DEAD OLDEST"
    assert row.split()[:5] == [filled, "1", "1", "0", "2"]
    (summary,) = topics("queue", "ls", filled, "--json").objects
    assert 0 <= time.time() - summary.pop("oldest_ts") / 1000 < 60
    counts = {"ready": 1, "in_flight": 1, "delayed": 0, "dead_lettered": 2}
    assert summary == {"topic": filled, **counts, "waiting": 0}
    (job,) = client.queue(filled).claim("me")
    client.queue(filled).nack("me", job, delay=600.0)
    assert topics("queue", "ls", filled).out.splitlines()[1].split()[1:4] == ["0", "1", "1"]


def test_info_names_lease_holders_and_the_command_for_dead_letters(
    topics: Run, filled: str
) -> None:
    done = topics("queue", "info", filled)
    titles, counts, _, held, _, _, *config = done.out.splitlines()
    assert titles.startswith("QUEUE ")
    assert counts.split()[:5] == [filled, "1", "1", "0", "2"]
    assert held == "HELD BY  worker-a (1)"
    assert {"max_deliveries 1 0", f"dead_letter {filled}.dead null"} <= {
        " ".join(line.split()) for line in config
    }
    message = f"2 dead letters: topics queue redrive {filled}.dead moves them back"
    assert done.err == f"topics: {message}\n"
    (report,) = topics("queue", "info", filled, "--json").objects
    assert (report["holders"], report["dead_letters"]) == ({"worker-a": 1}, 2)
    assert report["config"]["max_deliveries"] == 1


def test_peek_marks_leased_jobs_and_leases_none(topics: Run, client: Topics, filled: str) -> None:
    for _ in range(2):
        _, held, ready = topics("queue", "peek", filled).out.splitlines()
    assert held.startswith("3 ")
    assert "worker-a (" in held
    assert held.endswith(' left, delivery 1)  {"n":2}')
    assert ready.endswith('  -    -                                 {"n":3}')
    jobs = topics("queue", "peek", filled, "--json", "-n", "5").objects
    assert [(job["$seq"], job["lease"] and job["lease"]["node"]) for job in jobs] == [
        (3, "worker-a"),
        (4, None),
    ]
    assert len(topics("queue", "peek", filled, "-n", "1", "--json").objects) == 1
    assert [lease.seq for lease in client.queue(filled).leases()] == [3]


def test_leases_are_listed_by_worker(topics: Run, filled: str) -> None:
    assert topics("queue", "leases", filled).out.splitlines()[1].split()[:2] == ["3", "worker-a"]
    (lease,) = topics("queue", "leases", filled, "--json", "--node", "worker-a").objects
    assert (lease["$seq"], lease["deliveries"]) == (3, 1)
    done = topics("queue", "leases", filled, "--node", "b")
    assert done == (0, "", f"topics: no job in {filled} is leased by b\n")


def test_a_redrive_moves_dead_letters_back(
    topics: Run, client: Topics, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "REDRIVE_MAX", 1)  # one request each
    done = topics("queue", "redrive", f"{filled}.dead", "--tag", "t1")
    assert done == (0, "1 moved, 0 left\n", "")
    client.topic(f"{filled}.dead").append("no source")
    done = topics("queue", "redrive", f"{filled}.dead", "--json")
    (reply,) = done.objects
    assert (done.code, reply["moved"], reply["skipped"], reply["reason"]) == (1, 1, 1, "no_source")
    tags = [job["$tag"] for job in topics("queue", "peek", filled, "--json").objects]
    assert tags == ["t2", None, "t1", "t0"]
    done = topics("queue", "redrive", f"{filled}.dead", "--to", filled, "--limit", "1")
    assert done == (0, "1 moved, 0 left\n", "")


def test_empty_results_are_reported_on_stderr(topics: Run, client: Topics, name: str) -> None:
    client.queue(name).put()
    assert topics("queue", "peek", name) == (0, "", f"topics: {name} has no jobs\n")
    assert topics("queue", "ls", "-q", "nope-") == (0, "", "")
    assert topics("queue", "ls", "nope-").err == "topics: no queue begins with nope-\n"


@pytest.mark.parametrize("command", ["info", "peek", "leases"])
def test_a_topic_that_is_not_a_queue_is_refused(
    topics: Run, client: Topics, name: str, command: str
) -> None:
    client.topic(name).put()
    assert topics("--json", "queue", command, name).error["code"] == "not_a_queue"

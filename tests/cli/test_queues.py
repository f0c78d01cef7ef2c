"""The commands ``queue``: the reports of a queue, and the redrive of dead letters."""

from __future__ import annotations

import time

import pytest

from tests.cli.conftest import Run
from topics.cli import queues
from topics.client import Topics


@pytest.fixture
def hurt(client: Topics, name: str) -> str:
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


def test_the_list_contains_only_queues(topics: Run, client: Topics, hurt: str) -> None:
    client.topic(f"{hurt}.log").append(1)
    head, row = topics("queue", "ls", hurt).out.splitlines()
    assert " ".join(head.split()) == "QUEUE READY IN FLIGHT WAITING DEAD OLDEST"
    assert row.split()[:5] == [hurt, "1", "1", "0", "2"]
    (told,) = topics("queue", "ls", hurt, "--json").objects
    assert 0 <= time.time() - told.pop("oldest_ts") / 1000 < 60
    counts = {"ready": 1, "in_flight": 1, "delayed": 0, "dead_lettered": 2}
    assert told == {"topic": hurt, **counts, "waiting": 0}
    (job,) = client.queue(hurt).claim("me")
    client.queue(hurt).nack("me", job, delay=600.0)
    assert topics("queue", "ls", hurt).out.splitlines()[1].split()[1:4] == ["0", "1", "1"]


def test_info_names_lease_holders_and_the_command_for_dead_letters(topics: Run, hurt: str) -> None:
    done = topics("queue", "info", hurt)
    titles, counts, _, held, _, _, *config = done.out.splitlines()
    assert titles.startswith("QUEUE ")
    assert counts.split()[:5] == [hurt, "1", "1", "0", "2"]
    assert held == "HELD BY  worker-a (1)"
    assert {"max_deliveries 1 0", f"dead_letter {hurt}.dead null"} <= {
        " ".join(line.split()) for line in config
    }
    told = f"2 dead letters: topics queue redrive {hurt}.dead moves them back"
    assert done.err == f"topics: {told}\n"
    (told,) = topics("queue", "info", hurt, "--json").objects
    assert (told["holders"], told["dead_letters"]) == ({"worker-a": 1}, 2)
    assert told["config"]["max_deliveries"] == 1


def test_peek_marks_leased_jobs_and_leases_none(topics: Run, client: Topics, hurt: str) -> None:
    for _ in range(2):
        _, held, ready = topics("queue", "peek", hurt).out.splitlines()
    assert held.startswith("3 ")
    assert "worker-a (" in held
    assert held.endswith(' left, delivery 1)  {"n":2}')
    assert ready.endswith('  -    -                                 {"n":3}')
    jobs = topics("queue", "peek", hurt, "--json", "-n", "5").objects
    assert [(job["$seq"], job["lease"] and job["lease"]["node"]) for job in jobs] == [
        (3, "worker-a"),
        (4, None),
    ]
    assert len(topics("queue", "peek", hurt, "-n", "1", "--json").objects) == 1
    assert [lease.seq for lease in client.queue(hurt).leases()] == [3]


def test_leases_are_listed_by_worker(topics: Run, hurt: str) -> None:
    assert topics("queue", "leases", hurt).out.splitlines()[1].split()[:2] == ["3", "worker-a"]
    (lease,) = topics("queue", "leases", hurt, "--json", "--node", "worker-a").objects
    assert (lease["$seq"], lease["deliveries"]) == (3, 1)
    done = topics("queue", "leases", hurt, "--node", "b")
    assert done == (0, "", f"topics: no job in {hurt} is leased by b\n")


def test_a_redrive_moves_dead_letters_back(
    topics: Run, client: Topics, hurt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "REDRIVE_MAX", 1)  # one request each
    done = topics("queue", "redrive", f"{hurt}.dead", "--tag", "t1")
    assert done == (0, "1 moved, 0 left\n", "")
    client.topic(f"{hurt}.dead").append("no source")
    done = topics("queue", "redrive", f"{hurt}.dead", "--json")
    (told,) = done.objects
    assert (done.code, told["moved"], told["skipped"], told["reason"]) == (1, 1, 1, "no_source")
    tags = [job["$tag"] for job in topics("queue", "peek", hurt, "--json").objects]
    assert tags == ["t2", None, "t1", "t0"]
    done = topics("queue", "redrive", f"{hurt}.dead", "--to", hurt, "--limit", "1")
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

"""The command ``work``: a program for each job, and every way in which it can stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.program import Program
from tests.support.server import Server
from topics.cli.work import environment_of
from topics.client import Job, Topics
from topics.client.values import JobRecord, QueueCounts

SHOW = 'cat; echo "$TOPICS_TOPIC $TOPICS_SEQ $TOPICS_TAG $TOPICS_DELIVERIES $TOPICS_LAST_ERROR"'
ALIVE_S = 30.0


def counts(client: Topics, name: str) -> QueueCounts:
    queue = client.queue(name).state().queue
    assert queue is not None
    return queue


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ALIVE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


@pytest.fixture
def queue(client: Topics, name: str) -> str:
    client.queue(name).put(leases_durable=True)
    return name


def test_the_program_gets_the_job_on_stdin_and_exit_0_acks_it(
    topics: Run, client: Topics, queue: str
) -> None:
    client.queue(queue).append(records=[{"data": {"a": 1}, "tag": "t"}, {"data": "text"}])
    done = topics("work", queue, "--drain", "--", "sh", "-c", SHOW)
    assert done == (0, f'{{"a":1}}\n{queue} 1 t 1 \n"text"\n{queue} 2  1 \n', "")
    assert client.queue(queue).state().count == 0
    again = topics("work", queue, "--drain", "--", "cat")
    assert again == (0, "", f"topics: {queue} has no jobs\n")


def test_a_failed_program_nacks_the_job_with_its_last_line_of_stderr(
    topics: Run, client: Topics, queue: str
) -> None:
    client.queue(queue).append(1)
    done = topics("work", queue, "--once", "--", "sh", "-c", "echo one >&2; echo two >&2; exit 3")
    assert (done.code, done.out) == (1, "")
    assert done.err == f"one\ntwo\ntopics: {queue}#1: exit code 3, delivery 1\n"
    assert counts(client, queue).ready == 0  # the job waits for its delay
    done = topics("work", queue, "--once", "--", "sh", "-c", f"{SHOW}; kill -9 $$")
    assert (done.code, done.out) == (1, f"1\n{queue} 1  2 two\n")
    (job,) = client.queue(queue).claim("me", wait=20)
    assert (job.deliveries, job.last_error) == (3, "killed by signal 9")


def test_drain_includes_jobs_that_the_programs_append(
    topics: Run, client: Topics, queue: str
) -> None:
    client.queue(queue).append(2)
    program = (
        "import sys, json; from topics.client import Topics\n"
        "if left := json.load(sys.stdin): Topics().topic(sys.argv[1]).append(left - 1)"
    )
    done = topics("work", queue, "--drain", "--", sys.executable, "-c", program, queue)
    assert done == (0, "", "")
    state = client.queue(queue).state()
    assert (state.count, state.head_seq) == (0, 3)


def test_j_sets_the_number_of_concurrent_programs(
    topics: Run, client: Topics, queue: str, tmp_path: Path
) -> None:
    """Each of the three programs waits for the other two."""
    client.queue(queue).append(1, 2, 3)
    meet = f"cd {tmp_path}; touch $TOPICS_SEQ; until [ -e 1 -a -e 2 -a -e 3 ]; do sleep 0.01; done"
    assert topics("work", queue, "-j", "3", "--drain", "--", "sh", "-c", meet).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["QUEUE", "cat", "-c", "x"], 2, "the command needs -- before it"),
        (["QUEUE", "--"], 2, "Missing argument"),
        (["QUEUE", "--", "no-such-program"], 2, "command not found: no-such-program"),
        (["QUEUE", "--", "/etc/passwd"], 2, "command not found: /etc/passwd"),
        (["QUEUE", "--lease", "5ms", "--", "cat"], 2, "must be at least 1s"),
        (["QUEUE", "--lease", "long", "--", "cat"], 2, "not a duration"),
        (["QUEUE", "-j", "0", "--", "cat"], 2, "not in the range"),
        (["nowhere", "--", "cat"], 4, "topic_not_found"),
        (["QUEUE", "--url", "http://127.0.0.1:1", "--timeout", "0", "--", "cat"], 6, "no response"),
    ],
)
def test_invalid_arguments_end_the_command_before_a_claim(
    topics: Run, client: Topics, queue: str, arguments: list[str], code: int, message: str
) -> None:
    client.queue(queue).append(1)
    done = topics("work", *[queue if each == "QUEUE" else each for each in arguments])
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert counts(client, queue) == QueueCounts(ready=1, in_flight=0, dead_lettered=0)


def test_help_shows_the_usage_and_a_topic_that_is_not_a_queue_is_refused(
    topics: Run, client: Topics, name: str
) -> None:
    assert "QUEUE -- COMMAND..." in topics("work", "--help").out
    client.topic(name).put()
    done = topics("--json", "work", name, "--", "cat")
    assert (done.code, done.error["code"]) == (1, "not_a_queue")


def test_a_program_that_cannot_be_started_ends_the_command(
    topics: Run, client: Topics, queue: str, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    client.queue(queue).append(1)
    done = topics("work", queue, "--", str(broken))
    assert (done.code, done.err) == (1, f"topics: {broken}: No such file or directory\n")
    assert counts(client, queue) == QueueCounts(ready=1, in_flight=0, dead_lettered=0)


def test_null_bytes_are_replaced_in_environment_variables() -> None:
    record = JobRecord(seq=1, ts=0, lease_id="l", deadline=0, deliveries=1, last_error="a\0b")
    assert environment_of(record)["TOPICS_LAST_ERROR"] == "a b"


def test_a_lost_lease_stops_the_program(
    topics: Run, client: Topics, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(queue).append(1)
    states = iter([False])  # the worker checks it once before it returns the job
    monkeypatch.setattr(Job, "lost", property(lambda _: next(states, True)))
    done = topics("work", queue, "--once", "--", "sleep", "60")
    assert done.err.splitlines() == [
        f"topics: {queue}#1: the lease is lost, stopping the command",
        f"topics: {queue}#1: the lease was lost, so the job will run again",
    ]


# Signals, with the command as a separate process


def working(queue: str, *command: str) -> Program:
    return started("work", queue, "-j", "2", "--", *command)


@pytest.mark.slow
def test_sigterm_lets_running_programs_finish(client: Topics, queue: str) -> None:
    client.queue(queue).append(1, 2, 3)
    with working(queue, "sh", "-c", "echo $TOPICS_SEQ; read line; sleep 1; echo done") as worker:
        assert worker.stdout is not None
        first_lines = {worker.stdout.readline(), worker.stdout.readline()}
        worker.terminate()
        assert worker.communicate(timeout=ALIVE_S) == ("done\ndone\n", "")
        assert worker.returncode == 0
    assert first_lines == {"1\n", "2\n"}
    assert counts(client, queue) == QueueCounts(ready=1, in_flight=0, dead_lettered=0)


@pytest.mark.slow
def test_sigterm_ends_a_worker_that_waits_for_jobs(
    client: Topics, queue: str, tmp_path: Path
) -> None:
    client.queue(queue).append(1)
    with working(queue, "touch", str(tmp_path / "done")) as worker:
        until((tmp_path / "done").exists)
        until(lambda: client.queue(queue).state().count == 0)
        began = time.monotonic()
        assert worker.ended_by(signal.SIGTERM) == ("", "")
        assert (worker.returncode, time.monotonic() - began < 15) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("to_all", [True, False])
def test_ctrl_c_releases_the_jobs_immediately(client: Topics, queue: str, to_all: bool) -> None:
    client.queue(queue).append(1, 2, 3)
    with working(queue, "sh", "-c", "echo begun; exec sleep 60") as worker:
        assert worker.stdout is not None
        assert [worker.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        if to_all:
            os.killpg(worker.pid, signal.SIGINT)
        else:
            worker.send_signal(signal.SIGINT)
        _, messages = worker.communicate(timeout=ALIVE_S)
        assert (worker.returncode, messages.splitlines()[-1]) == (130, "topics: interrupted")
        assert messages.count("released") == 2
    assert counts(client, queue) == QueueCounts(ready=3, in_flight=0, dead_lettered=0)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_of_the_server_does_not_end_the_command(tmp_path: Path, end: str) -> None:
    """A program that runs during a restart runs once, and the next job is claimed afterwards."""
    with Server(tmp_path / "data", shards=1) as server, Topics(url_of(server)) as client:
        queue = client.queue("jobs")
        queue.put(leases_durable=True, durability="fsync")
        queue.append("long")
        host, port = server.address
        server.env["TOPICS_PORT"] = str(port)
        script = f"echo begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done; cat"
        with started(
            *("--url", f"http://{host}:{port}", "work", "jobs", "--", "sh", "-c", script)
        ) as worker:
            assert worker.stdout is not None
            assert worker.stderr is not None
            assert worker.stdout.readline() == "begun\n"
            server.restart(end)
            (tmp_path / "go").touch()
            assert worker.stdout.readline() == '"long"\n'
            until(lambda: queue.state().count == 0)
            server.restart(end)  # this time the worker waits for jobs
            assert "; trying again" in worker.stderr.readline()
            assert worker.stderr.readline() == "topics: connected again\n"
            queue.append("next")
            assert [worker.stdout.readline() for _ in range(2)] == ["begun\n", '"next"\n']
            worker.terminate()
            assert worker.communicate(timeout=ALIVE_S) == ("", "")

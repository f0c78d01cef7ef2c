"""The code in README.md about queues and routers does what the text says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.api import Api, data, ok
from tests.support.copies import kept
from tests.support.queues import HOUR_MS, Queue, counters, until

README = Path(__file__).resolve().parents[2] / "README.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 30.0


class Block(NamedTuple):
    """Code between two fences."""

    language: str
    code: str


def blocks(section: str) -> list[Block]:
    """The code blocks under a heading."""
    text = README.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return [Block(language, code) for language, code in FENCE.findall(text)]


SETUP, PYTHON, SHELL, OTHERS = blocks("Queues")


def adapted(block: Block, queue: Queue) -> str:
    """The code for this server and this queue."""
    host, port = queue.api.address
    return (
        block.code.replace("127.0.0.1:4000", f"{host}:{port}")
        .replace("topics/jobs", f"topics/{queue.name}")
        .replace("jobs.dead", f"{queue.name}.dead")
    )


def command(block: Block, queue: Queue) -> list[str]:
    for tool in ("curl", "jq") if block.language == "sh" else ():
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    program = [sys.executable, "-c"] if block.language == "python" else ["sh", "-c"]
    return [*program, adapted(block, queue)]


@contextmanager
def running(block: Block, queue: Queue) -> Iterator[subprocess.Popen[str]]:
    """A worker, which runs until it is killed; with all that it has started."""
    worker = subprocess.Popen(
        command(block, queue),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield worker
    finally:
        subprocess.run(["kill", "-9", "--", f"-{worker.pid}"], check=False)
        worker.communicate(timeout=TIMEOUT_S)


def line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().rstrip("\n")


@pytest.fixture
def jobs(api: Api, topic: str) -> Queue:
    """The queue of the README with its two jobs, made as the README does it."""
    queue = Queue(api, topic)
    made = subprocess.run(
        command(SETUP, queue), check=True, capture_output=True, timeout=TIMEOUT_S, text=True
    )
    assert '"error"' not in made.stdout
    return queue


def test_the_readme_makes_a_queue_with_a_job_and_a_delayed_one(jobs: Queue) -> None:
    config = jobs.api.state(jobs.name)["config"]
    assert (config["type"], config["max_deliveries"], config["lease_ms"]) == ("queue", 5, 30_000)
    assert config["dead_letter"] == f"{jobs.name}.dead"
    assert jobs.api.state(jobs.name)["count"] == 2


def test_the_worker_in_python_works_jobs_off(jobs: Queue) -> None:
    with running(PYTHON, jobs) as worker:
        assert [line(worker), line(worker)] == ["resize s3://b/x.png", "resize s3://b/y.png"]
        jobs.becomes()
        jobs.push({"url": "quote'\"\\ é\u2028"})
        assert line(worker) == "resize quote'\"\\ é\u2028"
        jobs.becomes()


@pytest.mark.slow
def test_the_worker_in_python_gives_back_what_fails(jobs: Queue) -> None:
    with running(PYTHON, jobs) as worker:
        assert [line(worker), line(worker)] == ["resize s3://b/x.png", "resize s3://b/y.png"]
        jobs.push({"no": "url"})
        jobs.push({"url": "good"})
        assert line(worker) == "resize good", "it goes on"
        jobs.becomes()
        assert jobs.live() == [3], "hidden for 5 s"
    until(jobs.counters, lambda found: found["ready"] == 1)
    assert [job["deliveries"] for job in jobs.claim()] == [2]


def test_the_worker_in_the_shell_works_jobs_off(jobs: Queue) -> None:
    with running(SHELL, jobs) as worker:
        assert [line(worker), line(worker)] == ["s3://b/x.png", "s3://b/y.png"]
        jobs.becomes()
        jobs.push({"url": "quote'\"\\n \\ é"})
        assert line(worker) == "quote'\"\\n \\ é"
        jobs.becomes()


@pytest.mark.slow
def test_the_worker_in_the_shell_gives_back_what_fails_until_it_is_a_dead_letter(
    jobs: Queue,
) -> None:
    with running(SHELL, jobs) as worker:
        assert [line(worker), line(worker)] == ["s3://b/x.png", "s3://b/y.png"]
        jobs.push({"no": "url"})
        assert [line(worker) for _ in range(5)] == ["null"] * 5
        jobs.becomes(dead_lettered=1)
        (letter,) = jobs.api.read(f"{jobs.name}.dead")
        assert letter["data"] == {"no": "url"}


@pytest.mark.slow
def test_the_other_calls_of_the_readme_are_answered(jobs: Queue) -> None:
    ok(jobs.api.put(f"{jobs.name}.dead"), 201)
    (job,) = jobs.claim("worker-1", lease_ms=HOUR_MS)
    jobs.becomes(ready=1, in_flight=1)
    plain = OTHERS._replace(code=OTHERS.code.replace("curl -N", "curl -m 2 -N"))
    done = subprocess.run(
        command(plain, jobs), check=False, capture_output=True, timeout=TIMEOUT_S, text=True
    )
    assert '"error"' not in done.stdout
    assert '"extended":1' in done.stdout
    assert job["lease_id"] in done.stdout
    assert '"moved":0' in done.stdout
    assert "event: job" in done.stdout
    assert "s3://b/y.png" in done.stdout
    jobs.becomes(ready=1, in_flight=1)
    assert jobs.counters() == counters(ready=1, in_flight=1)


(EXAMPLE,) = blocks("Routers")


def answers(printed: str) -> list[Any]:
    """The JSON bodies that follow each other without anything in between."""
    found: list[Any] = []
    at, decoder = 0, json.JSONDecoder()
    while at < len(printed):
        body, at = decoder.raw_decode(printed, at)
        assert "error" not in body
        found.append(body)
    return found


def test_the_example_of_routers_prints_what_its_comments_say(api: Api, topic: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    host, port = api.address
    code = EXAMPLE.code.replace("127.0.0.1:4000", f"{host}:{port}")
    for name in ("orders", "audit"):
        code = code.replace(f"/{name}", f"/{topic}.{name}").replace(
            f'"{name}"', f'"{topic}.{name}"'
        )
    code = code.replace("source=orders", f"source={topic}.orders")
    done = subprocess.run(
        ["sh", "-c", code], check=True, capture_output=True, timeout=TIMEOUT_S, text=True
    )
    made, appended, copies, mine, shown, listed, deleted = answers(done.stdout)
    assert (made["created"], appended["count"]) == (True, 2)
    assert data(copies["records"]) == [{"sku": "A1"}]
    assert mine["records"] == []
    assert (shown["forwarded_total"], shown["lag_records"], shown["lag_ms"]) == (1, 0, 0)
    assert [router["router"] for router in listed["routers"]] == [made["router"]]
    assert deleted["deleted"] is True
    assert data(kept(api, f"{topic}.audit")) == [{"sku": "A1"}], "its copies stay"
    for name in ("orders", "audit"):
        assert ok(api.delete(f"{topic}.{name}"))["routers_removed"] == []

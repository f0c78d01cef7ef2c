"""POST /v0/topics/:dlq/redrive: dead letters go back to where they came from."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok, raw_records, refused
from tests.support.queues import HOUR_MS, Queue, counters, data, names_on, numbers, until
from tests.support.server import Server

pytestmark = pytest.mark.slow

FROM = "$dead_letter_from"


class Letters:
    """A queue with a dead-letter topic of its own."""

    def __init__(self, api: Api, name: str, dead: str, **config: Any) -> None:
        self.queue = Queue.create(api, name, max_deliveries=1, dead_letter=dead, **config)
        self.dead = Queue(api, dead)

    def fill(self, *records: dict[str, Any]) -> None:
        """Jobs that are delivered once and end as dead letters, in this order."""
        for record in records:
            ok(self.queue.api.append(self.queue.name, records=[record]))
            self.queue.spend(1, 1)
            self.queue.bury(1)

    def left(self) -> list[Any]:
        """The data of the letters that are still there."""
        return [record["data"] for record in self.queue.api.read(self.dead.name)]


@pytest.fixture(params=["same shard", "another shard"])
def letters(request: pytest.FixtureRequest, api: Api, topic: str) -> Letters:
    same, other = names_on(topic)
    return Letters(api, topic, same if request.param == "same shard" else other)


def plain(*values: Any) -> list[dict[str, Any]]:
    return [{"data": value} for value in values]


def test_letters_go_back_to_the_queue_that_they_name(letters: Letters) -> None:
    letters.fill(*plain("a", "b"))
    body = letters.dead.redrive()
    body.pop("performance")
    assert body == {"topic": letters.dead.name, "moved": 2, "remaining": 0, "skipped": 0}
    assert letters.left() == []
    assert letters.queue.counters() == counters(ready=2, dead_lettered=2)
    jobs = letters.queue.claim("w", 5)
    assert [(job["data"], job["deliveries"]) for job in jobs] == [("a", 1), ("b", 1)]


def test_a_letter_comes_back_as_it_was(letters: Letters) -> None:
    record = {"data": {"url": "x"}, "tag": "job-1", "meta": {"trace": "z9", "n": 1}}
    letters.fill(record, {"data": None}, {"data": 1, "meta": {}})
    letters.dead.redrive()
    (first, second, third) = letters.queue.api.read(letters.queue.name, include_tags=True)
    assert (first["data"], first["$tag"], first["meta"]) == tuple(record.values())
    assert "meta" not in second, "an empty meta is absent"
    assert second["data"] is None
    assert "$tag" not in second
    assert "meta" not in third


ODD = b'{"n":1.10,"big":1E400,"e":"\\u00e9\\/","raw":"\xc3\xa9", "list" : [ 1 , 2 ]}'


def test_data_and_the_other_members_of_meta_keep_their_bytes(letters: Letters) -> None:
    body = b'{"records":[{"data":' + ODD + b',"meta":' + ODD + b"}]}"
    queue = letters.queue
    ok(queue.api.call("POST", f"/v0/topics/{queue.name}", body))
    queue.spend(1, 1)
    queue.bury(1)
    letters.dead.redrive()
    (back,) = raw_records(queue.api.diff(queue.name))
    assert bytes(back.data) == ODD
    for member in (b'"n":1.10', b'"big":1E400', b'"e":"\\u00e9\\/"', b'"raw":"\xc3\xa9"'):
        assert member in bytes(back.meta)
    assert b"[ 1 , 2 ]" in bytes(back.meta)
    assert b"$dead_letter" not in bytes(back.meta)


def test_a_repeated_redrive_moves_nothing_twice(letters: Letters) -> None:
    letters.fill(*plain("a", "b"))
    assert [letters.dead.redrive()["moved"] for _ in range(3)] == [2, 0, 0]
    assert letters.queue.counters()["ready"] == 2


# --- which

TAGGED = [{"data": tag, "tag": tag} for tag in ("a", "ab", "b", "a", "c")]
MATCHES: list[tuple[Any, list[str]]] = [
    ("a", ["a", "a"]),
    (["tag", "Eq", "a"], ["a", "a"]),
    (["tag", "Glob", "a*"], ["a", "ab", "a"]),
    ("none", []),
]


@pytest.mark.slow
def test_limit_is_1000_by_default_and_clamped_to_10000(api: Api, topic: str) -> None:
    """Forged letters are as good as others."""
    queue = Queue.create(api, topic)
    dead = Queue(api, f"{topic}.dead")
    for first in (0, 6000):
        records = [{"data": first + number, "meta": {FROM: topic}} for number in range(6000)]
        answer = api.append(dead.name, records=records)
        ok(answer, answer.status)
    body = dead.redrive()
    assert (body["moved"], body["remaining"]) == (1000, 11_000)
    body = dead.redrive(limit=50_000)
    assert (body["moved"], body["remaining"]) == (10_000, 1000)
    assert queue.counters()["ready"] == 11_000


def test_a_letter_that_was_moved_is_not_claimable_where_it_was(letters: Letters) -> None:
    dead = Queue.create(letters.queue.api, letters.dead.name)
    letters.fill(*plain("a", "b"))
    dead.nack(dead.claim("mender"), "mender", delay_ms=HOUR_MS)
    assert dead.redrive()["moved"] == 2
    assert dead.claim("mender", 5) == []
    assert dead.counters() == counters()


# --- where to


def test_to_names_another_target(letters: Letters, api: Api) -> None:
    letters.fill(*plain("a", "b"))
    other = Queue.create(api, f"{letters.queue.name}.other")
    assert letters.dead.redrive(to=other.name)["moved"] == 2
    assert data(other.claim("w", 5)) == ["a", "b"]
    assert letters.queue.counters() == counters(dead_lettered=2)


def test_the_path_is_no_target(letters: Letters) -> None:
    letters.fill(*plain("a"))
    name = letters.dead.name
    refused(letters.dead.call("redrive", {"to": name}), 400, "invalid_request")
    assert letters.left() == ["a"]


# --- what is skipped


def test_records_whose_target_is_full_are_skipped_while_others_go_on(api: Api, topic: str) -> None:
    dead = f"{topic}.dead"
    full = Letters(api, f"{topic}.full", dead, cap_records=1, discard="reject")
    free = Letters(api, f"{topic}.free", dead)
    full.fill(*plain(1, 2))
    free.fill(*plain(3))
    full.queue.push("taken")
    body = free.dead.redrive()
    assert (body["moved"], body["skipped"], body["reason"]) == (1, 2, "topic_full")
    assert free.left() == [1, 2]
    full.queue.ack(full.queue.claim())
    body = free.dead.redrive()
    assert (body["moved"], body["skipped"]) == (1, 1)
    assert full.queue.counters() == counters(ready=1, dead_lettered=2)


# --- a crash in between


@pytest.fixture(params=[0.0, 0.01, 0.03, 0.08], ids=lambda value: f"{value} s")
def crashed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """A server that was killed so soon after a redrive of 400 letters began."""
    with Server(tmp_path / "data", shards=2) as server:
        dead, target = names_on("q")
        with Api(server.address) as api:
            Queue.create(api, target, durability="fsync")
            records = [{"data": number, "meta": {FROM: target}} for number in range(400)]
            ok(api.append(dead, records=records), 201)
        redrive = threading.Thread(target=_redrive, args=(server, dead))
        redrive.start()
        time.sleep(request.param)
        server.kill()
        redrive.join()
        server.start()
        with Api(server.address) as api:
            yield api


def _redrive(server: Server, name: str) -> None:
    try:
        with Api(server.address) as api:
            Queue(api, name).redrive()
    except OSError:
        return  # the server was killed
    except Exception:
        if server.running:
            raise


@pytest.mark.slow
def test_a_crash_in_between_doubles_nothing(crashed: Api) -> None:
    dead, target = names_on("q")
    until(lambda: Queue(crashed, dead).redrive()["remaining"], lambda left: left == 0)
    assert crashed.read(dead) == []
    assert sorted(data(crashed.read(target))) == list(range(400))
    jobs = Queue(crashed, target).claim("w", 500)
    assert len(numbers(jobs)) == 400

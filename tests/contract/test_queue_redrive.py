"""POST /v0/topics/:dlq/redrive: dead letters return to their source queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok, raw_records
from tests.support.queues import Queue, counters, data, names_on, numbers, until
from tests.support.server import Server

pytestmark = pytest.mark.slow

FROM = "$dead_letter_from"


class Letters:
    """A queue with its own dead-letter topic."""

    def __init__(self, api: Api, name: str, dead: str) -> None:
        self.queue = Queue.create(api, name, max_deliveries=1, dead_letter=dead)
        self.dead = Queue(api, dead)

    def fill(self, *records: dict[str, Any]) -> None:
        """Push jobs that are delivered once and become dead letters in this order."""
        for record in records:
            ok(self.queue.api.append(self.queue.name, records=[record]))
            self.queue.spend(1, 1)
            self.queue.bury(1)

    def left(self) -> list[Any]:
        """Return the data of the letters that were not moved."""
        return [record["data"] for record in self.queue.api.read(self.dead.name)]


@pytest.fixture(params=["same shard", "another shard"])
def letters(request: pytest.FixtureRequest, api: Api, topic: str) -> Letters:
    same, other = names_on(topic)
    return Letters(api, topic, same if request.param == "same shard" else other)


def plain(*values: Any) -> list[dict[str, Any]]:
    return [{"data": value} for value in values]


def test_letters_are_moved_to_the_queue_that_their_meta_names(letters: Letters) -> None:
    letters.fill(*plain("a", "b"))
    body = letters.dead.redrive()
    body.pop("performance")
    assert body == {"topic": letters.dead.name, "moved": 2, "remaining": 0, "skipped": 0}
    assert letters.left() == []
    assert letters.queue.counters() == counters(ready=2, dead_lettered=2)
    jobs = letters.queue.claim("w", 5)
    assert [(job["data"], job["deliveries"]) for job in jobs] == [("a", 1), ("b", 1)]


ODD = b'{"n":1.10,"big":1E400,"e":"\\u00e9\\/","raw":"\xc3\xa9", "list" : [ 1 , 2 ]}'


def test_data_and_other_meta_members_are_unchanged_byte_for_byte(letters: Letters) -> None:
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


# --- a crash during a redrive


@pytest.fixture(params=[0.0, 0.01, 0.03, 0.08], ids=lambda value: f"{value} s")
def crashed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    """A server that was killed at a given time after the start of a redrive of 400 letters."""
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
def test_a_crash_during_a_redrive_duplicates_no_letter(crashed: Api) -> None:
    dead, target = names_on("q")
    until(lambda: Queue(crashed, dead).redrive()["remaining"], lambda left: left == 0)
    assert crashed.read(dead) == []
    assert sorted(data(crashed.read(target))) == list(range(400))
    jobs = Queue(crashed, target).claim("w", 500)
    assert len(numbers(jobs)) == 400

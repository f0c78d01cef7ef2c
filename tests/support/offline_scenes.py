"""A data directory with a little of everything, and what its server said of it before the stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.api import Answer, Api, ok
from tests.support.queues import Queue, until
from tests.support.server import Server
from topics.client.http import Record, Target, TopicsClient

LOG_FILE_BYTES = 256 << 10  # so that most records are sealed
ROWS = 4000
HOUR_MS = 3_600_000

Row = tuple[int, int, str | None, str | None, bytes, bytes]


class Scene(NamedTuple):
    """``answers``: by topic, all records as a diff gave them; ``states``: as a GET gave them."""

    path: Path
    answers: dict[str, list[Row]]
    states: dict[str, dict[str, Any]]


def row(record: Record) -> Row:
    """All of a record, to be compared."""
    return (
        record.seq,
        record.ts,
        record.node,
        record.tag,
        bytes(record.data),
        bytes(record.meta),
    )


def answer_of(client: TopicsClient, topic: str) -> list[Row]:
    """All records of a topic, as a running server gives them."""
    found: list[Row] = []
    at = 0
    while True:
        page = client.diff(topic, from_seq=at, limit=1000)
        found += map(row, page.records)
        at = page.next_from_seq
        if page.caught_up:
            return found


def write_scene(path: Path) -> Scene:
    """Run a server on a new directory with small log files, write, and stop it."""
    return _written(path, _write_sealed, wal_file_bytes=LOG_FILE_BYTES)


def write_unsealed(path: Path) -> Scene:
    """The same with log files of the usual size: no record is sealed."""
    return _written(path, _write_unsealed)


def _write_sealed(api: Api, path: Path) -> None:
    for write in (_write_logs, _write_deleted, _write_queue, _write_long, _write_routed):
        write(api)
    until(lambda: len([*path.glob("segment/*/*.seg")]), lambda count: count >= 4)


def _write_unsealed(api: Api, path: Path) -> None:
    for write in (_write_deleted, _write_queue, _write_long, _write_routed):
        write(api)
    assert not [*path.glob("segment/*/*.seg")]
    assert [*path.glob("blob/*/*.blob")]


def _written(path: Path, write: Callable[[Api, Path], None], **options: object) -> Scene:
    with Server(path, shards=2, **options) as server:
        with Api(server.address) as api:
            write(api, path)
            names = [topic["topic"] for topic in ok(api.listing(page_size=1000))["topics"]]
            states = {name: api.state(name) for name in names}
        host, port = server.address
        with TopicsClient(Target(url=f"http://{host}:{port}")) as client:
            answers = {name: answer_of(client, name) for name in names}
    return Scene(path, answers, states)


def _records(count: int, of: str) -> list[dict[str, Any]]:
    return [
        {
            "data": {"id": number, "text": f'{of} "é" ' + "x" * (number % 90)},
            **({"tag": f"t{number % 7}:é"} if number % 3 else {}),
            **({"node": f"n{number % 2}"} if number % 5 else {}),
            **({"meta": {"n": number}} if number % 4 == 0 else {}),
        }
        for number in range(count)
    ]


def _accepted(answer: Answer) -> None:
    assert answer.status in (200, 201), answer


def _append(api: Api, topic: str, records: list[dict[str, Any]], step: int = 250) -> None:
    for start in range(0, len(records), step):
        _accepted(api.append(topic, records=records[start : start + step]))


def _write_logs(api: Api) -> None:
    _append(api, "plain", _records(ROWS, "plain"))
    verbatim = b'{"records":[{"data":{"b" : 1e2, "b":12345678901234567890123}},{"data":null}]}'
    _accepted(api.call("POST", "/v0/topics/verbatim", verbatim))
    ok(api.put("capped", {"cap_records": 700}), 201)
    _append(api, "capped", _records(ROWS, "capped"))
    ok(api.put("capped.by.bytes", {"cap_bytes": 20_000}), 201)
    _append(api, "capped.by.bytes", _records(1500, "bytes"))
    ok(api.put("aging", {"ttl_ms": HOUR_MS}), 201)
    _append(api, "aging", _records(1500, "aging"))
    ok(api.put("expired", {"ttl_ms": 50}), 201)
    _append(api, "expired", _records(300, "expired"))
    time.sleep(0.06)  # the ttl is what the topic is about
    _append(api, "expired", _records(3, "and these may go, too"))
    ok(api.put("expired", {"ttl_ms": HOUR_MS}))
    ok(api.put("volatile", {"durability": "ephemeral"}), 201)


def _write_deleted(api: Api) -> None:
    for topic in ("trimmed", "erased", "again", "gone", "emptied"):
        _append(api, topic, _records(1000, topic))
    ok(api.delete("gone"))
    ok(api.delete("again"))
    _append(api, "again", _records(40, "second life"))
    _append(api, "filler", _records(ROWS, "filler"))  # what was deleted from is sealed by now
    _delete(api, "trimmed", before_seq=501)
    _delete(api, "erased", match=["tag", "Eq", "t1:é"])
    _delete(api, "erased", match=["tag", "Glob", "t2*"], before_seq=600)
    _delete(api, "emptied", before_seq=1001)


def _delete(api: Api, topic: str, **fields: Any) -> None:
    ok(api.call("POST", f"/v0/topics/{topic}/delete", fields))


def _write_queue(api: Api) -> None:
    queue = Queue.create(api, "jobs", *({"job": number} for number in range(400)))
    jobs = queue.claim("w", 100)
    queue.ack(jobs[::2])
    queue.nack(jobs[1::4])


def _write_long(api: Api) -> None:
    text = "y" * (1000 << 10)
    for number in range(2):
        _accepted(api.append("long", {"id": number, "text": text}))
    _accepted(api.append("long", *("z" * 1_000_000 for _ in range(6))))  # streamed: a blob
    _append(api, "long", _records(10, "short"))


def _write_routed(api: Api) -> None:
    for dest in ("copies.a", "copies.b", "copies.c"):  # in both shards
        body = {"source": "source", "dest": dest, "preserve_tag": dest != "copies.b"}
        ok(api.call("PUT", f"/v0/routers/to-{dest}", body), 201)
    _append(api, "source", _records(1200, "source"))
    for dest in ("copies.a", "copies.b", "copies.c"):
        _until_head(api, dest, 1200)
    _accepted(
        api.append("source", *("w" * 1_000_000 for _ in range(5)))
    )  # a blob, and copies of it
    _until_head(api, "copies.c", 1205)


def _until_head(api: Api, topic: str, head_seq: int) -> None:
    until(lambda: api.state(topic)["head_seq"], lambda head: head == head_seq)

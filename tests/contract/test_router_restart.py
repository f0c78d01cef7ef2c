"""Routers over restarts and kills: copies keep seq, ``$ts`` and bytes, counters stay exact, and
forwarding resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, forwarded, kept, passed, route, shown
from tests.support.queues import Queue, counters, fill_the_log, until
from tests.support.routers import names_for, path_of
from tests.support.server import Server
from tests.support.sse import seqs

pytestmark = pytest.mark.slow

SMALL_LOG = 64 << 10
DURABLE = ("disk", "fsync")
ENDS = pytest.mark.parametrize("end", ["stop", "kill"])
# Two of the four combinations suffice, because the way in which the server ends hardly depends on
# whether both ends are in one shard.
RUNS = pytest.mark.parametrize(("shards", "end"), [((0, 0), "stop"), ((0, 1), "kill")], ids=str)
GUARANTEES = ("at_least_once", "exactly_once")


def records(count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return records with different fields and sizes."""
    return [
        {
            "data": [number, "x" * (4000 if number % 7 == 0 else number)],
            **({"tag": f"t{number % 3}"} if number % 2 else {}),
            **({"node": f"n{number % 5}"} if number % 3 else {}),
            **({"meta": {"m": number}} if number % 4 == 0 else {}),
        }
        for number in range(first, first + count)
    ]


def append(api: Api, topic: str, count: int, first: int = 0) -> None:
    """Append half of the records in one write, and each of the others in its own."""
    made = records(count, first)
    ok(api.append(topic, records=made[: count // 2]))
    for record in made[count // 2 :]:
        ok(api.append(topic, records=[record]))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2, wal_file_bytes=SMALL_LOG) as server:
        server.wait_roles(3)
        yield server


def pairs(api: Api, shards: tuple[int, int], **config: Any) -> list[tuple[str, str, str]]:
    """Create a router for each durable class and guarantee. Return its source, dest and name."""
    made = []
    for durability in DURABLE:
        for guarantee in GUARANTEES:
            source, dest = names_for(f"{durability}.{guarantee}", shards)
            ok(api.put(source, {"durability": durability}), 201)
            ok(api.put(dest, {"durability": durability, **config}), 201)
            name = route(api, source, dest, guarantee=guarantee)
            made.append((source, dest, name))
    return made


@RUNS
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "in the log"])
def test_copies_are_the_same_after_a_restart(
    server: Server, shards: tuple[int, int], end: str, sealed: bool
) -> None:
    with Api(server.address) as api:
        made = pairs(api, shards)
        before = {}
        for source, _, _ in made:
            append(api, source, 40)
        for source, dest, name in made:
            passed(api, name)
            before[dest] = kept(api, dest)
            assert data(before[dest]) == data(kept(api, source))
        if sealed:
            fill_the_log(api)
    for step in range(1, 3):
        with server.again(end) as api:
            for source, dest, name in made:
                found = kept(api, dest)
                assert found[: len(before[dest])] == before[dest]
                assert forwarded(api, name) == 40 * step, "the count is not exact"
                append(api, source, 40, 40 * step)
            for source, dest, name in made:
                passed(api, name)
                before[dest] = kept(api, dest)
                assert data(before[dest]) == data(kept(api, source))
                assert seqs(before[dest]) == [*range(1, 40 * (step + 1) + 1)]


@RUNS
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "in the log"])
def test_copies_survive_the_deletion_of_their_source(
    server: Server, shards: tuple[int, int], end: str, sealed: bool
) -> None:
    with Api(server.address) as api:
        made = pairs(api, shards)
        before = {}
        for source, _, _ in made:
            append(api, source, 30)
        for source, dest, name in made:
            passed(api, name)
            before[dest] = kept(api, dest)
            assert ok(api.delete(source))["routers_removed"] == [name]
        if sealed:
            fill_the_log(api)
        for _, dest, _ in made:
            assert kept(api, dest) == before[dest]
    for _ in range(2):
        with server.again(end) as api:
            for source, dest, name in made:
                assert kept(api, dest) == before[dest]
                assert api.get(source).status == 404
                refused(api.call("GET", path_of(name)), 404, "router_not_found")
            fill_the_log(api)


@RUNS
def test_copies_survive_evictions_and_deletes_in_the_source(
    server: Server, shards: tuple[int, int], end: str
) -> None:
    with Api(server.address) as api:
        made = pairs(api, shards)
        before = {}
        for source, dest, name in made:
            append(api, source, 30)
            passed(api, name)
            before[dest] = kept(api, dest)
            ok(api.put(source, {"cap_records": 5}))
            ok(api.call("POST", f"/v0/topics/{source}/delete", {"before_seq": 30}))
        fill_the_log(api)
        fill_the_log(api)
    with server.again(end) as api:
        for source, dest, name in made:
            assert kept(api, dest) == before[dest]
            assert forwarded(api, name) == 30
            ok(api.append(source, "after"))
            assert (
                data(until(lambda dest=dest: kept(api, dest), lambda found: len(found) == 31))[  # type: ignore[misc]
                    -1
                ]
                == "after"
            )


@RUNS
def test_copies_of_a_streamed_append_survive_restarts(
    server: Server, shards: tuple[int, int], end: str
) -> None:
    """Its records are stored next to the log in the shard of the source."""
    large = [f"{number}" + "x" * 900_000 for number in range(6)]
    with Api(server.address) as api:
        source, dest = names_for("t", shards)
        route(api, source, dest)
        ok(api.append(source, *large))
        before = arrived(api, dest, *large)
        ok(api.delete(source))
    for _ in range(2):
        with server.again(end) as api:
            assert kept(api, dest) == before
            fill_the_log(api)
            assert kept(api, dest) == before


@RUNS
def test_records_that_wait_for_a_full_dest_are_forwarded_after_a_restart(
    server: Server, shards: tuple[int, int], end: str
) -> None:
    with Api(server.address) as api:
        made = pairs(api, shards, discard="reject", cap_records=3)
        for source, _, _ in made:
            append(api, source, 30)
        for _, dest, _ in made:
            until(lambda dest=dest: len(kept(api, dest)), lambda count: count == 3)  # type: ignore[misc]
        fill_the_log(api)
    with server.again(end) as api:
        for source, dest, name in made:
            found = shown(api, name)
            assert (found["forwarded_total"], found["lag_records"]) == (3, 27)
            ok(api.put(dest, {"cap_records": 100}))
            until(lambda dest=dest: len(kept(api, dest)), lambda count: count == 30)  # type: ignore[misc]
            assert data(kept(api, dest)) == data(kept(api, source))
            assert forwarded(api, name) == 30
    with server.again(end) as api:
        for source, dest, name in made:
            assert data(kept(api, dest)) == data(kept(api, source))
            assert forwarded(api, name) == 30


@RUNS
def test_a_gap_is_still_reported_after_a_restart(
    server: Server, shards: tuple[int, int], end: str
) -> None:
    source, dest = names_for("t", shards)
    with Api(server.address) as api:
        ok(api.put(source, {"cap_records": 5}), 201)
        ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
        name = route(api, source, dest)
        ok(api.append(source, "first"))
        arrived(api, dest, "first")
        ok(api.append(source, *range(20)))
        ok(api.put(dest, {"cap_records": 100}))
        arrived(api, dest, "first", *range(15, 20))
        before = [ok(api.diff(dest, from_seq=seq)) for seq in range(22)]
        assert before[1]["tombstone"]["reason"] == "source_trim"
        assert (before[1]["tombstone"]["gap_from"], before[1]["tombstone"]["gap_to"]) == (2, 16)
        fill_the_log(api)
    for _ in range(2):
        with server.again(end) as api:
            after = [ok(api.diff(dest, from_seq=seq)) for seq in range(22)]
            for page in (*before, *after):
                page.pop("performance", None)
            assert after == before
            assert forwarded(api, name) == 6


@ENDS
def test_copies_in_a_queue_stay_acked_or_ready_after_a_restart(server: Server, end: str) -> None:
    source, dest = names_for("t", [0, 1])
    with Api(server.address) as api:
        queue = Queue.create(api, dest)
        route(api, source, dest)
        ok(api.append(source, *range(10)))
        queue.ack(queue.claim_all(4))
    with server.again(end) as api:
        queue = Queue(api, dest)
        assert queue.counters() == counters(ready=6)
        assert data(queue.claim("w", 10)) == [*range(4, 10)]
        ok(api.append(source, "after"))
        assert data(queue.claim_all(1)) == ["after"]


@RUNS
def test_a_restart_removes_only_records_of_ephemeral_ends(
    server: Server, shards: tuple[int, int], end: str
) -> None:
    """Copies of an ephemeral source stay in a durable dest. An ephemeral dest loses its copies."""
    source, dest = names_for("s", shards)
    first, second = names_for("d", shards)
    with Api(server.address) as api:
        ok(api.put(source, {"durability": "ephemeral"}), 201)
        ok(api.put(second, {"durability": "ephemeral"}), 201)
        names = [route(api, source, dest), route(api, first, second)]
        ok(api.append(source, *range(10)))
        ok(api.append(first, *range(10)))
        passed(api, *names)
        before = arrived(api, dest, *range(10))
        head = api.state(second)["head_seq"]
    with server.again(end) as api:
        assert kept(api, dest) == before
        assert forwarded(api, names[0]) == 10
        assert api.state(second)["head_seq"] >= head
        ok(api.append(source, "after"))
        ok(api.append(first, "after"))
        passed(api, *names)
        assert data(kept(api, dest)) == [*range(10), "after"]
        found = kept(api, second)
        assert data(found)[-1] == "after"
        assert found[-1]["$seq"] > head, "a seq was assigned twice"

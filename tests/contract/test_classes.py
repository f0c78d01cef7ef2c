"""Records of each durability class after a restart, also after a change of the class (§0.10, §3.3).

Even a class that may lose records never assigns a seq twice, and every loss is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.contract.retained import LOSSES
from tests.support.api import Api, ok, refused
from tests.support.server import Server
from tests.support.sse import CAUGHT_UP, TOMBSTONE, watch
from tests.support.ws import Socket

pytestmark = pytest.mark.slow

ENDS = ("stop", "kill")


@dataclass(slots=True)
class Read:
    """The records and tombstones that a reader gets from one cursor to the head."""

    data: dict[int, Any] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    head_seq: int = 0


def read_from(api: Api, topic: str, from_seq: int = 0, limit: int = 7) -> Read:
    """Read all pages. Check that every tombstone reports an involuntary loss after the cursor."""
    found = Read()
    cursor = from_seq
    while True:
        page = ok(api.diff(topic, from_seq=cursor, limit=limit))
        tombstone = page["tombstone"]
        if tombstone is not None:
            assert tombstone["reason"] in LOSSES
            assert cursor < tombstone["gap_from"] <= tombstone["gap_to"] <= page["head_seq"], (
                cursor,
                tombstone,
            )
            found.lost.update(range(tombstone["gap_from"], tombstone["gap_to"] + 1))
        found.data |= {record["$seq"]: record["data"] for record in page["records"]}
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            found.head_seq = page["head_seq"]
            return found


def everything_is_reported(
    api: Api, topic: str, written: dict[int, Any], from_seq: int = 0
) -> Read:
    """Check that each seq after the cursor is either read as written or reported as lost, and that
    no other records are read.
    """
    for limit in (1, 7, 1000):
        found = read_from(api, topic, from_seq, limit)
        assert found.lost.isdisjoint(found.data)
        assert {*found.data} | found.lost == {*range(from_seq + 1, found.head_seq + 1)}
        assert all(written[seq] == data for seq, data in found.data.items())
    state = api.state(topic)
    assert (state["count"] == 0) == (state["bytes"] == 0)
    assert state["count"] == len(read_from(api, topic).data)
    assert state["earliest_seq"] == min(read_from(api, topic).data, default=state["head_seq"] + 1)
    return found


def write(api: Api, topic: str, written: dict[int, Any], count: int, **fields: Any) -> None:
    """Append ``count`` records in writes of two, and record them. No seq may be assigned twice."""
    highest = max(written, default=0)
    while count:
        data = [[topic, len(written) + number] for number in range(min(2, count))]
        answer = api.append(topic, *data, **fields)
        body = ok(answer, answer.status)
        assert body["first_seq"] > highest, (
            f"seq {body['first_seq']} was assigned before (up to {highest})"
        )
        highest = body["last_seq"]
        written.update(zip(body["seqs"], data, strict=True))
        count -= len(data)


class Stage:
    """A server and the records written to its topics. ``restart`` ends it as ``end`` specifies."""

    def __init__(self, server: Server, end: str) -> None:
        self.server, self.end = server, end
        self.api = Api(server.address)
        self.written: dict[str, dict[int, Any]] = {}

    def put(self, topic: str, **config: Any) -> Any:
        answer = self.api.put(topic, config)
        return ok(answer, answer.status)["config"]

    def write(self, topic: str, count: int, **fields: Any) -> None:
        write(self.api, topic, self.written.setdefault(topic, {}), count, **fields)

    def read(self, topic: str, from_seq: int = 0) -> Read:
        return everything_is_reported(self.api, topic, self.written[topic], from_seq)

    def restart(self) -> None:
        self.api.close()
        self.server.restart(self.end)
        self.api = Api(self.server.address)


@pytest.fixture(scope="module", params=ENDS)
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """One server for each way to end it. Each test uses its own topic names."""
    path: Path = tmp_path_factory.mktemp("classes") / "data"
    with Server(path, shards=1) as server:
        stage = Stage(server, request.param)
        yield stage
        stage.api.close()


def test_each_class_keeps_its_promise_over_two_restarts(stage: Stage) -> None:
    configs = {
        name: stage.put(name, durability=name, priority=7)
        for name in ("ephemeral", "memory", "disk", "fsync")
    }
    for name in configs:
        stage.write(name, 9)
    heads = dict.fromkeys(configs, 9)
    for _ in range(2):
        stage.restart()
        for name, config in configs.items():
            state = stage.api.state(name)
            assert state["config"] == config, "a config did not survive"
            assert state["head_seq"] >= heads[name]
            found = stage.read(name)
            if name in ("disk", "fsync"):
                assert found.data == stage.written[name]
                assert not found.lost
            stage.write(name, 4)
            assert stage.read(name).data.keys() >= {*list(stage.written[name])[-4:]}
            heads[name] = stage.api.state(name)["head_seq"]


def test_the_loss_of_an_ephemeral_topic_is_reported_to_readers_that_missed_it(stage: Stage) -> None:
    stage.put("reported", durability="ephemeral")
    stage.write("reported", 6)
    stage.restart()
    state = stage.api.state("reported")
    head = state["head_seq"]
    assert (state["count"], state["bytes"], state["earliest_seq"]) == (0, 0, head + 1)
    if stage.end == "stop":
        assert head == 6, "the checkpoint lost the head"
    for cursor in range(6):
        page = ok(stage.api.diff("reported", from_seq=cursor, epoch=state["epoch"]))
        tombstone = page["tombstone"]
        assert tombstone["reason"] in LOSSES
        assert [tombstone[name] for name in ("gap_from", "gap_to", "earliest_seq", "head_seq")] == [
            cursor + 1,
            head,
            head + 1,
            head,
        ]
        assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], head, True)
    assert ok(stage.api.diff("reported", from_seq=head))["tombstone"] is None
    stage.write("reported", 2)
    for cursor in (0, 3):
        page = ok(stage.api.diff("reported", from_seq=cursor))
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (cursor + 1, head)
        assert [record["$seq"] for record in page["records"]] == [head + 1, head + 2]
    assert ok(stage.api.diff("reported", from_seq=head))["tombstone"] is None


def test_an_ephemeral_topic_is_complete_while_the_process_runs(stage: Stage) -> None:
    stage.put("complete", durability="ephemeral", cap_records=5)
    stage.write("complete", 8)
    found = stage.read("complete")
    assert (found.lost, [*found.data]) == ({1, 2, 3}, [4, 5, 6, 7, 8])
    answer = ok(stage.api.call("POST", "/v0/topics/complete/delete", {"before_seq": 7}))
    assert (answer["deleted"], answer["earliest_seq"], answer["count"]) == (3, 7, 2)


CHANGES: list[tuple[str, str]] = [
    ("ephemeral", "fsync"),
    ("ephemeral", "disk"),
    ("ephemeral", "memory"),
    ("memory", "fsync"),
    ("fsync", "ephemeral"),
    ("disk", "ephemeral"),
    ("fsync", "memory"),
    ("fsync", "disk"),
    ("disk", "fsync"),
]


def test_the_class_of_a_topic_can_be_changed(stage: Stage) -> None:
    for first, then in CHANGES:
        name = f"{first}-{then}"
        stage.put(name, durability=first)
        stage.write(name, 5)
        epoch = stage.api.state(name)["epoch"]
        config = stage.put(name, durability=then)
        assert (config["durability"], config["durable"]) == (then, then == "fsync")
        assert stage.api.state(name)["epoch"] == epoch
        assert stage.read(name).data == stage.written[name], (
            "the change of class lost records of a running process"
        )
        stage.write(name, 5)
    stage.restart()
    for first, then in CHANGES:
        name = f"{first}-{then}"
        found = stage.read(name)
        kept = {
            seq
            for half, durability in ((range(1, 6), first), (range(6, 11), then))
            if durability in ("disk", "fsync")
            for seq in half
        }
        assert kept <= {*found.data}, f"{name}: {kept - {*found.data}} are lost"
        assert stage.api.state(name)["config"]["durability"] == then
        stage.write(name, 3)
        assert kept <= {*stage.read(name).data}


def test_repeated_class_changes_lose_only_records_of_volatile_classes(stage: Stage) -> None:
    kept: set[int] = set()
    for durability in ("fsync", "ephemeral", "disk", "ephemeral", "fsync"):
        stage.put("t", durability=durability)
        before = {*stage.written.get("t", {})}
        stage.write("t", 4)
        if durability != "ephemeral":
            kept |= {*stage.written["t"]} - before
    stage.restart()
    assert kept <= {*stage.read("t").data}
    for cursor in (2, 6, 10, 14):
        stage.read("t", cursor)
    stage.put("t", durability="ephemeral")
    stage.write("t", 2)
    stage.restart()
    assert kept <= {*stage.read("t").data}


def diff_gaps(api: Api, topic: str, cursor: int, limit: int) -> list[tuple[int, int]]:
    gaps = []
    while True:
        page = ok(api.diff(topic, from_seq=cursor, limit=limit))
        if (tombstone := page["tombstone"]) is not None:
            gaps.append((tombstone["gap_from"], tombstone["gap_to"]))
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            return gaps


def watch_gaps(api: Api, topic: str, cursor: int, limit: int) -> list[tuple[int, int]]:
    with watch(api, {topic: {"from_seq": cursor}}, limit=limit) as stream:
        contents = stream.read_until_caught_up([topic])
        assert contents.events[-1].event == CAUGHT_UP
        return [(body["gap_from"], body["gap_to"]) for body in contents.of(TOMBSTONE)]


def socket_gaps(api: Api, topic: str, cursor: int, limit: int) -> list[tuple[int, int]]:
    with Socket(api.address) as socket:
        socket.request("subscribe", "s", topic=topic, from_seq=cursor, limit=limit)
        return [
            (body["gap_from"], body["gap_to"])
            for body in socket.until("caught_up")
            if body["op"] == "tombstone"
        ]


def test_a_gap_between_records_is_reported_once_and_completely_to_every_reader(
    stage: Stage,
) -> None:
    for durability in ("disk", "ephemeral", "disk", "ephemeral", "disk"):
        stage.put("gapped", durability=durability)
        stage.write("gapped", 4)
    stage.restart()
    # With this watch at the head, the other readers join a feed that already has a cursor.
    with watch(stage.api, {"gapped": {"tail": True}}, limit=1) as live:
        live.read_until_caught_up(["gapped"])
        for limit in (1, 3, 1000):
            for cursor in range(21):
                gaps = [
                    (max(first, cursor + 1), last)
                    for first, last in ((5, 8), (13, 16))
                    if last > cursor
                ]
                for found in (diff_gaps, watch_gaps, socket_gaps):
                    assert found(stage.api, "gapped", cursor, limit) == gaps, (
                        found.__name__,
                        cursor,
                        limit,
                    )


def test_an_ephemeral_topic_survives_a_restart_unless_it_was_deleted(stage: Stage) -> None:
    stage.write("made", 3, config={"durability": "ephemeral", "cap_records": 2})
    stage.write("gone", 3, config={"durability": "ephemeral"})
    ok(stage.api.delete("gone"))
    stage.restart()
    refused(stage.api.get("gone"), 404, "topic_not_found")
    assert stage.api.state("made")["config"]["cap_records"] == 2
    stage.read("made")
    stage.write("made", 3)
    stage.read("made")


KINDS: dict[str, Callable[[Stage, str], Any]] = {
    "by-cap": lambda stage, topic: stage.put(topic, cap_records=3),
    "by-delete": lambda stage, topic: ok(
        stage.api.call("POST", f"/v0/topics/{topic}/delete", {"before_seq": 4})
    ),
}


def test_a_floor_of_an_ephemeral_topic_never_decreases(stage: Stage) -> None:
    for topic, move in KINDS.items():
        stage.put(topic, durability="ephemeral")
        stage.write(topic, 6)
        move(stage, topic)
        assert stage.api.state(topic)["earliest_seq"] == 4
    stage.restart()
    for topic in KINDS:
        assert stage.api.state(topic)["earliest_seq"] >= 7
        stage.put(topic, cap_records=0)
        stage.write(topic, 1)
        page = ok(stage.api.diff(topic, from_seq=0))
        assert page["tombstone"]["gap_from"] == 1
        assert page["tombstone"]["gap_to"] == page["earliest_seq"] - 1

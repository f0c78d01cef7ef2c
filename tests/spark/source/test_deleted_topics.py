"""Deleted topics of a pattern: a stream drops their positions, and reads every record once.

The walks use models of two servers. `test_stream` deletes topics of a real one.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Self

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.spark.client.states import topic_info, topic_state
from topics.client.values import TopicInfo, TopicState
from topics.spark.client.http import Page, Record, RequestError
from topics.spark.client.ranges import Loss
from topics.spark.client.servers import Server
from topics.spark.source import reading, stream
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import Connection
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost
from topics.spark.source.stream import StreamReader

WALKS, STEPS = 150, 40
NAMES = ("t1", "t2", "t3")
RecordId = tuple[str, str, int]  # server, topic and `$ts`, which is unique on a model server


class ModelServer:
    """Topics that are created, appended to and deleted."""

    def __init__(self) -> None:
        self.clock = self.epochs = 0
        self.topics: dict[str, tuple[int, list[int]]] = {}  # the epoch, and the `$ts` of each seq
        self.is_up = True

    def append(self, topic: str, count: int = 1) -> None:
        if topic not in self.topics:
            self.epochs += 1
            self.topics[topic] = (self.epochs, [])
        self.topics[topic][1].extend(range(self.clock + 1, self.clock + count + 1))
        self.clock += count


class ModelClient:
    """The requests that a stream sends to a server."""

    connections = 1

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def _topics(self) -> dict[str, tuple[int, list[int]]]:
        if not self._server.is_up:
            raise RequestError("", 0, "unreachable", "it is down")
        return self._server.topics

    def listing(self, prefix: str) -> Iterator[TopicInfo]:
        for name, (epoch, times) in sorted(self._topics().items()):
            yield topic_info(name, len(times), 1, epoch, times[-1] if times else None)

    def state(self, topic: str) -> TopicState | None:
        return topic_state(topic, 0, 1, 1) if topic in self._topics() else None

    def diff(self, topic: str, *, from_seq: int, limit: int, **_fields: Any) -> Page:
        if topic not in self._topics():
            raise RequestError(topic, 404, "topic_not_found", "")
        epoch, times = self._server.topics[topic]
        found = [
            Record(seq, times[seq - 1], msgspec.Raw(b"1"))
            for seq in range(from_seq + 1, min(len(times), from_seq + limit) + 1)
        ]
        end = from_seq + len(found)
        return Page(found, end, len(times), 1, end >= len(times), epoch, None)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModelServer]:
    created = {"a": ModelServer(), "b": ModelServer()}

    def client(connection: Connection, server: Server, *_budget: Any) -> ModelClient:
        return ModelClient(created[server.name])

    monkeypatch.setattr(Connection, "client", client)
    return created


def reader(*, strict: bool) -> StreamReader:
    given = {"servers": "a=http://h:1,b=http://h:2", "subscribePattern": r"t\d+"}
    given |= {"columns": "partition,topic,timestamp", "startingOffsets": "earliest"}
    options = ReadOptions.parse(given | {"failOnDataLoss": str(strict).lower()}, "stream")
    created = StreamReader(options, Columns(schema_of(options.columns)))
    created._sleep = lambda seconds: None
    return created


class Query:
    """A stream over the model servers."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.restart()
        self.at = self.reader.initialOffset()
        self.read: list[RecordId] = []

    def restart(self) -> None:
        """Start again from the checkpoint."""
        self.reader = reader(strict=self.strict)

    def batch(self, limit: int = 1000) -> None:
        end = self.reader.latestOffset(self.at, ReadMaxRows(limit))
        end = json.loads(json.dumps(end))
        parts = self.reader.partitions(self.at, end)
        assert parts == reader(strict=self.strict).partitions(self.at, end)
        for part in parts:
            for rows in self.reader.read(part):
                for row in rows.to_pylist():
                    ms = int(row["timestamp"].timestamp() * 1000)
                    self.read.append(("ab"[row["partition"]], row["topic"], ms))
        self.at = end


class Walk:
    """A query and random changes of its servers. ``seen``: the records that its polls reported,
    ``known`` those of the polls since the last start.
    """

    def __init__(self, servers: dict[str, ModelServer], seed: int, *, strict: bool) -> None:
        self.rng, self.servers, self.query = random.Random(seed), servers, Query(strict=strict)
        self.seen: set[RecordId] = set()
        self.known: set[RecordId] = set()
        self.deleted: set[tuple[str, str]] = set()  # but still in the offsets
        self.recreated = 0

    def live(self, *, up: bool = False) -> set[RecordId]:
        return {
            (name, topic, ts)
            for name, server in self.servers.items()
            for topic, (_, times) in server.topics.items()
            for ts in times
            if server.is_up or not up
        }

    def positions(self) -> set[tuple[str, str]]:
        return {(name, topic) for name, topics in self.query.at.items() for topic in topics}

    def step(self) -> None:
        name, topic = self.rng.choice("ab"), self.rng.choice(NAMES)
        server = self.servers[name]
        match self.rng.choice([*["append"] * 4, *["batch"] * 5, "delete", "restart", "switch"]):
            case "append":
                self.recreated += topic not in server.topics and (name, topic) in self.deleted
                server.append(topic, self.rng.randint(1, 5))
            case "batch":
                self.batch(self.rng.choice([1, 4, 1000]))
            case "delete" if topic in server.topics:
                del server.topics[topic]
                self.deleted |= {(name, topic)} & self.positions()
            case "restart":
                self.query.restart()
                self.known.clear()
            case "switch":
                server.is_up = not server.is_up

    def batch(self, limit: int) -> None:
        self.seen |= self.live(up=True)
        self.known |= self.live(up=True)
        self.query.batch(limit)
        self.deleted &= self.positions()

    def finish(self) -> None:
        """Read the remaining records."""
        for server in self.servers.values():
            server.is_up = True
        for _ in range(4):
            self.batch(1000)


@pytest.mark.parametrize("strict", [True, False])
def test_every_record_is_read_once_and_known_unread_records_are_reported(
    strict: bool, servers: dict[str, ModelServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: Counter[tuple[str, str]] = Counter()

    def record_loss(options: ReadOptions, server: str, topic: str, loss: Loss) -> None:
        lost[server, topic] += loss.estimate
        if strict:
            reading.report(options, server, topic, loss)

    monkeypatch.setattr(stream, "report", record_loss)
    monkeypatch.setattr(stream, "warn", lambda text: None)
    outcomes: Counter[str] = Counter()
    for seed in range(WALKS):
        lost.clear()
        for server in servers.values():
            server.__init__()  # type: ignore[misc]
        walk = Walk(servers, seed, strict=strict)
        try:
            for _ in range(STEPS):
                walk.step()
            walk.finish()
        except DataLost:
            assert walk.recreated or walk.seen - set(walk.query.read), f"seed {seed}"
            outcomes["refused"] += 1
            continue
        read = Counter(walk.query.read)
        assert max(read.values(), default=1) == 1, f"seed {seed}"
        assert walk.live() <= read.keys(), f"seed {seed}"
        assert walk.positions() == {record[:2] for record in walk.live()}, f"seed {seed}"
        unread = Counter(record[:2] for record in walk.known - read.keys())
        assert unread <= lost, f"seed {seed}"
        outcomes["with losses" if unread else "complete"] += 1
    assert outcomes["complete"] > WALKS // 10
    assert (outcomes["refused"] > WALKS // 10) == strict
    assert (outcomes["with losses"] > 0) != strict


def test_the_offsets_stay_small_after_1200_short_lived_topics(
    servers: dict[str, ModelServer],
) -> None:
    query = Query(strict=True)
    servers["b"].append("t0")
    for first in range(1, 1200, 100):
        names = [f"t{number}" for number in range(first, first + 100)]
        for name in names:
            servers["a"].append(name)
        query.batch()  # the topics enter the offsets
        query.batch()
        for name in names:
            del servers["a"].topics[name]
        query.batch()
        assert query.at.keys() == {"a", "b"}
        assert (query.at["a"], list(query.at["b"])) == ({}, ["t0"])
    assert len(query.read) == len(set(query.read)) == 1201
    query.batch()
    assert list((query.reader.reportLatestOffset() or {})["b"]) == ["t0"]
    assert (query.reader.reportLatestOffset() or {})["a"] == {}


def test_a_deletion_creates_a_batch_without_records_and_the_next_batch_is_idle(
    servers: dict[str, ModelServer],
) -> None:
    query = Query(strict=True)
    servers["a"].append("t1", 3)
    query.batch()
    query.batch()
    del servers["a"].topics["t1"]
    start = query.at
    query.batch()
    assert query.at == {"a": {}, "b": {}}
    assert query.reader.partitions(start, query.at) == []
    end = query.at
    query.batch()
    assert query.at is not start
    assert query.at == end
    assert len(query.read) == 3


def test_an_available_now_query_drops_the_positions_of_deleted_topics(
    servers: dict[str, ModelServer],
) -> None:
    query = Query(strict=True)
    servers["a"].append("t1")
    servers["a"].append("t2")
    query.batch()
    query.batch()
    del servers["a"].topics["t1"]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    assert list(query.at["a"]) == ["t2"]


def test_a_topic_that_the_pattern_no_longer_matches_keeps_its_position(
    servers: dict[str, ModelServer],
) -> None:
    query = Query(strict=False)
    servers["a"].append("t1")
    query.batch()
    query.batch()
    position = query.at["a"]["t1"]
    del servers["a"].topics["t1"]
    query.reader = StreamReader(
        replace(query.reader.options, pattern="others"), query.reader.columns
    )
    query.batch()
    assert query.at["a"]["t1"] == position

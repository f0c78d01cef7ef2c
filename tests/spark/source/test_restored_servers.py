"""Restored servers: a stream reads every record of the restored log, or raises DataLost.

The random walks use a model of one topic. The last test copies the directory of a server.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.spark.client.states import topic_info
from tests.spark.live import Live
from tests.spark.source.test_batch import offsets, reader_of
from tests.spark.source.test_stream import query
from topics import cli
from topics.client.values import TopicInfo
from topics.spark.client.http import Page, Record
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import Connection
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost
from topics.spark.source.stream import StreamReader
from topics.storage.promote import promote
from topics.storage.standby import Standby

TOPIC, EPOCH = "t", 7
WALKS, STEPS = 200, 40


class Log:
    """One topic of a server. A seq and its `$ts` identify a record, because all use one clock."""

    def __init__(self) -> None:
        self.clock = self.head = self.starts = 0
        self.times: dict[int, int] = {}  # of every record, including deleted ones
        self.live: set[int] = set()

    def append(self, count: int) -> None:
        for _ in range(count):
            self.clock += 1
            self.head += 1
            self.times[self.head] = self.clock
            self.live.add(self.head)

    def copy(self) -> tuple[int, dict[int, int], set[int]]:
        return self.head, dict(self.times), set(self.live)

    def restore(self, copy: tuple[int, dict[int, int], set[int]]) -> None:
        self.head, self.times, self.live = copy[0], dict(copy[1]), set(copy[2])
        self.starts += 1


class LogClient:
    """The requests that the source sends, with the responses of a log."""

    def __init__(self, log: Log) -> None:
        self._log, self.connections, self._start = log, 0, -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is open."""

    def _connect(self) -> int:
        """Connect after a restart, and return the earliest seq."""
        if self._start != self._log.starts:
            self._start = self._log.starts
            self.connections += 1
        return min(self._log.live, default=self._log.head + 1)

    def listing(self, prefix: str) -> list[TopicInfo]:
        earliest, log = self._connect(), self._log
        return [topic_info(TOPIC, log.head, earliest, EPOCH, log.times.get(log.head))]

    def diff(self, topic: str, *, from_seq: int, limit: int, **_fields: Any) -> Page:
        earliest, log = self._connect(), self._log
        found = sorted(seq for seq in log.live if seq > from_seq)
        records = [Record(seq, log.times[seq], msgspec.Raw(b"{}")) for seq in found[:limit]]
        end = records[-1].seq if len(found) > limit else max(log.head, from_seq)
        return Page(records, end, log.head, earliest, end >= log.head, EPOCH, None)


class Walk:
    """A random walk of a stream and its server. ``read`` are the records of the stream."""

    def __init__(self, log: Log, seed: int, *, strict: bool) -> None:
        self.rng, self.log = random.Random(seed), log
        self.kept = log.copy()
        given = {"columns": "offset,timestamp", "startingOffsets": "earliest"}
        given |= {"servers": "one=http://h:1", "subscribePattern": TOPIC}
        self.options = ReadOptions.parse(given | {"failOnDataLoss": str(strict).lower()}, "stream")
        self.read: set[tuple[int, int]] = set()
        self.deleted: set[tuple[int, int]] = set()  # a backup may contain them
        self.restored = 0
        self.start()
        self.at = self.reader.initialOffset()

    def start(self) -> None:
        self.reader = StreamReader(self.options, Columns(schema_of(self.options.columns)))
        self.reader._sleep = lambda seconds: None

    def step(self) -> None:
        log, rng = self.log, self.rng
        match rng.choice(["append"] * 3 + ["batch"] * 4 + ["copy", "delete", "restore", "stop"]):
            case "append":
                log.append(rng.randint(1, 6))
            case "batch":
                self.batch(rng.choice([1, 3, 100]))
            case "copy":
                self.kept = log.copy()
            case "delete":
                some = {seq for seq in log.live if rng.random() < 0.2}
                log.live -= some
                self.deleted |= {(seq, log.times[seq]) for seq in some}
            case "restore" if rng.random() < 0.5:
                log.restore(self.kept)
                self.restored += 1
            case "stop":
                self.start()

    def batch(self, limit: int, *, grows: bool = True) -> None:
        end = self.reader.latestOffset(self.at, ReadMaxRows(limit))
        for _ in range(self.rng.choice([1, 1, 2])):  # repeated after a crash
            self.take(end)
            if grows and self.rng.random() < 0.1:
                self.log.append(1)
        self.at = end

    def take(self, end: dict[str, Any]) -> None:
        for part in self.reader.partitions(self.at, end):
            for batch in self.reader.read(part):
                times = [int(time.timestamp() * 1000) for time in batch[1].to_pylist()]
                self.read |= set(zip(batch[0].to_pylist(), times, strict=True))

    def unread(self) -> set[tuple[int, int]]:
        """Return the live records that were not read after some more batches."""
        for _ in range(4):
            self.batch(1000, grows=False)
        live = {(seq, self.log.times[seq]) for seq in self.log.live}
        return live - self.deleted - self.read


@pytest.mark.parametrize("strict", [True, False])
def test_every_record_is_read_or_its_loss_is_reported(
    strict: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = completed = 0
    for seed in range(WALKS):
        log = Log()
        monkeypatch.setattr(Connection, "client", lambda *_budget, log=log: LogClient(log))
        walk = Walk(log, seed, strict=strict)
        try:
            for _ in range(STEPS):
                walk.step()
            assert walk.unread() == set(), f"seed {seed}"
            completed += walk.restored > 0
        except DataLost:
            assert walk.restored, f"seed {seed}"
            failed += 1
    assert (failed > WALKS // 10) == strict
    assert completed > WALKS // 10
    assert ("restore of a backup" in capfd.readouterr().err) != strict


@pytest.mark.parametrize("grown", [0, 9])
def test_a_stream_continues_with_a_restored_server(
    restartable: Live, tmp_path: Path, grown: int, capfd: pytest.CaptureFixture[str]
) -> None:
    server, kept = restartable.server, tmp_path / "kept"
    restartable.make("restored", 3)
    with query(restartable, subscribe="restored", failOnDataLoss="false") as running:
        assert running.seqs() == [1, 2, 3]
        server.stop()
        shutil.copytree(server.data_dir, kept)
        server.start()
        restartable.append("restored", range(4, 9))
        assert running.seqs() == [4, 5, 6, 7, 8]
        server.kill()
        shutil.rmtree(server.data_dir)
        shutil.copytree(kept, server.data_dir)
        server.start()
        if grown:
            restartable.append("restored", range(4, 4 + grown))
        message = "an older state, as after the restore of a backup, .* offsets from 4 are lost"
        with (
            query(restartable, running.at, subscribe="restored") as strict,
            pytest.raises(DataLost, match=message),
        ):
            strict.plan()
        assert running.seqs() == []
        assert running.seqs() == [*range(4, 4 + grown)]
        restartable.append("restored", [0])
        assert running.seqs() == [4 + grown]
    assert capfd.readouterr().err.count("restore of a backup") == 1


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_stream_continues_with_a_promoted_standby(
    restartable: Live, tmp_path: Path, is_strict: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    server, copy, topic = restartable.server, Standby(tmp_path / "copy"), f"promoted-{is_strict}"
    restartable.make(topic, 3)
    strict = str(is_strict).lower()
    with query(restartable, subscribe=topic, failOnDataLoss=strict) as running:
        assert running.seqs() == [1, 2, 3]
        run = ["--url", restartable.url, "-q", "standby", "run", str(copy.path), "--once"]
        assert cli.main(run) == 0
        restartable.append(topic, range(4, 9))
        assert running.seqs() == [4, 5, 6, 7, 8]
        server.kill()
        with copy.lock():
            promote(copy, as_new=False, with_damage=False, fence=None)
        shutil.rmtree(server.data_dir)
        shutil.copytree(copy.path, server.data_dir)
        server.start()
        last = restartable.append(topic, [9])
        assert last > 60_000_000
        # The records 4 to 8 were read before the server was lost. Their seqs are not used again.
        if is_strict:
            with pytest.raises(DataLost, match=r"offsets 9 to .* are lost"):
                running.seqs()
            return
        assert running.seqs() == [last]
    assert "offsets 9 to " in capfd.readouterr().err
    _check_that_the_gap_costs_no_tasks(restartable, topic, last)
    assert 1 <= capfd.readouterr().err.count(" are lost") <= 9


def _check_that_the_gap_costs_no_tasks(live: Live, topic: str, last: int) -> None:
    """Read a topic whose seqs 4 to ``last`` - 1 are lost, from its start."""
    options = {"subscribe": topic, "failOnDataLoss": "false"}
    reader = reader_of(live, **options)
    parts = reader.partitions()
    assert len(parts) <= 3
    assert offsets(reader, parts) == [1, 2, 3, last]
    with pytest.raises(DataLost, match=f"to {last - 1} are lost"):
        reader_of(live, subscribe=topic).partitions()
    for limit in ("1000000000000", "1000000", "2"):
        found: list[int] = []
        with query(live, **options, maxOffsetsPerTrigger=limit, startingOffsets="earliest") as one:
            for _ in range(6):
                assert len(one.reader.partitions(one.at, one.plan())) <= 3
                found += one.seqs()
        assert found == [1, 2, 3, last], limit

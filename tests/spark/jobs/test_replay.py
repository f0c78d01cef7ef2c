"""The records of an archive are appended to topics once, complete and in order."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from tests.spark.client.stub_server import Fault, StubServer, StubTopic
from tests.spark.jobs.archives import Row, write_archive
from topics.spark.interface import DEFAULTS
from topics.spark.jobs import replay
from topics.spark.jobs.cli import main

DAYS = ("2026-01-01", "2026-01-02")
ROWS = [
    *(
        Row(DAYS[n > 30], "a", n, f'{{"n": {n}}}', f"k{n % 5}", 0, "x", '{"h":1}')
        for n in range(1, 61)
    ),
    *(Row(DAYS[1], "b", n, f'{{"n": {n}}}') for n in range(101, 121)),
]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEFAULTS, "batchRecords", "7")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "archive", ROWS)


def run(stub: StubServer, root: Path, *more: str) -> int:
    return main(["replay", str(root), *more, "--url", stub.url, "--quiet"])


def numbers(stub: StubServer, topic: str) -> list[Any]:
    return [record["data"]["n"] for record in stub.topics[topic].records]


def test_a_topic_is_replayed_once_in_its_order(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for appended in (60, 0):
        assert run(stub, root, "t", "--from-topic", "a") == 0
        message = capsys.readouterr().out
        assert re.search(rf"appended +{appended}\nalready there +{60 - appended}\n", message)
        assert "60 records to 1 topics: all of the 60 records of the archive." in message
    assert numbers(stub, "t") == [*range(1, 61)]
    first = {"data": {"n": 1}, "tag": "k1", "node": "x", "meta": {"h": 1}}
    assert stub.topics["t"].records[0] == first


@pytest.mark.parametrize("has_epochs", [True, False])
def test_incarnations_of_a_topic_on_one_day_are_replayed_one_after_the_other_once(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], has_epochs: bool
) -> None:
    """The first incarnation is also archived by an earlier version, without its epoch."""
    root = tmp_path / "archive"
    first = [Row(DAYS[0], "a", n, f'{{"n": {n}}}', epoch=5) for n in range(1, 21)]
    write_archive(root, first, has_epochs=has_epochs)
    for appended in (20, 0):
        assert run(stub, root, "t") == 0
        assert re.search(rf"appended +{appended}\n", capsys.readouterr().out)
    if not has_epochs:
        DeltaTable(str(root)).alter.add_columns([Field("epoch", PrimitiveType("long"))])
    second = [
        Row(DAYS[n > 10], "a", n, f'{{"n": {100 + n}}}', epoch=epoch)
        for epoch, n in [(6, n) for n in range(1, 16)] + [(7, 1)]
    ]
    write_archive(root, second)
    for appended in (16, 0):
        assert run(stub, root, "t") == 0
        assert re.search(rf"appended +{appended}\n", capsys.readouterr().out)
    assert numbers(stub, "t") == [*range(1, 21), *range(101, 116), 101]


def test_days_that_are_replayed_one_by_one_and_then_together_are_appended_once(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stub, root, "t", "--from-topic", "a", "--until", DAYS[1]) == 0
    assert numbers(stub, "t") == [*range(1, 31)]
    DeltaTable(str(root)).optimize.compact()
    assert run(stub, root, "t", "--from-topic", "a") == 0
    assert numbers(stub, "t") == [*range(1, 61)]
    assert run(stub, root, "t", "--from-topic", "a", "--from", DAYS[1]) == 0
    assert re.search(r"appended +0\nalready there +30\n", capsys.readouterr().out)
    assert numbers(stub, "t") == [*range(1, 61)]


def test_each_topic_has_its_own_target(stub: StubServer, root: Path) -> None:
    assert run(stub, root, "--into", "copy.{topic}") == 0
    assert numbers(stub, "copy.a") == [*range(1, 61)]
    assert numbers(stub, "copy.b") == [*range(101, 121)]


def test_several_topics_are_replayed_to_one_topic_only_if_they_are_named(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stub, root, "t") == 1
    assert "records of several topics; select them by --from-topic" in capsys.readouterr().err
    assert stub.topics == {}
    assert run(stub, root, "t", "--from-topic", "b", "--from-topic", "a") == 0
    assert numbers(stub, "t") == [*range(1, 61), *range(101, 121)]


def test_a_failed_replay_continues_where_it_stopped(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.faults.extend([None] * 6 + [Fault(status=422, code="topic_full")])
    assert run(stub, root, "t", "--from-topic", "a") == 1
    message = capsys.readouterr().err
    assert 'topic "t": 422 topic_full' in message
    assert "appended before remain, and the same replay appends none of them twice" in message
    assert run(stub, root, "t", "--from-topic", "a") == 0
    assert numbers(stub, "t") == [*range(1, 61)]


class SharedTopic(StubTopic):
    """A topic to which another program appends a record after each request."""

    def append(self, name: str, records: list[dict[str, Any]], key: str | None) -> dict[str, Any]:
        answer = super().append(name, records, key)
        self.records.append({"data": {"n": "other"}})
        return answer


def test_a_replay_and_its_repetition_succeed_while_another_program_appends(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stub.topics["t"] = SharedTopic({"idempotency_window_ms": 10**8, "durability": "disk"}, epoch=1)
    for appended in (20, 0):
        assert run(stub, root, "t", "--from-topic", "b") == 0
        message = capsys.readouterr().out
        assert re.search(rf"appended +{appended}\nalready there +{20 - appended}\n", message)
        assert "agrees, and has 3 records by other writers" in message
    assert [n for n in numbers(stub, "t") if n != "other"] == [*range(101, 121)]


def test_a_warning_names_the_day_that_may_get_more_records(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today = datetime.now(UTC).date().isoformat()
    root = write_archive(tmp_path / "archive", [Row(today, "a", 1, '{"n":1}')])
    assert run(stub, root, "t") == 0
    assert f"warning: the archive has records of {today}" in capsys.readouterr().err


def test_other_archives_and_targets_are_other_jobs(
    stub: StubServer, root: Path, tmp_path: Path
) -> None:
    other = write_archive(tmp_path / "other", ROWS)
    for source in (root, other):
        assert run(stub, source, "t", "--from-topic", "b") == 0
    assert numbers(stub, "t") == 2 * [*range(101, 121)]


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["t", "--into", "{topic}"],
        ["t", "--from", "2026-13-01"],
        ["t", "--until", "2026/01/01"],
    ],
)
def test_invalid_arguments_are_a_usage_error(stub: StubServer, root: Path, more: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(stub, root, *more)
    assert ended.value.code == 2


def test_dates_without_records_are_an_error(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stub, root, "t", "--from", "2027-01-01") == 1
    message = f"error: {root}: it has no record of these dates; the topics are: none\n"
    assert capsys.readouterr().err == message
    assert run(stub, root, "t", "--from-topic", "a", "--from-topic", "x") == 1
    assert 'no record of topic "x" of these dates; the topics are: a, b' in capsys.readouterr().err


def test_a_folder_without_a_delta_table_is_a_usage_error(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stub, tmp_path, "t") == 2
    assert "not a Delta table; use Spark to read a Parquet archive" in capsys.readouterr().err


def test_a_damaged_file_is_reported_in_one_line(
    stub: StubServer, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in root.glob("date=*/*.parquet"):
        file.write_bytes(b"not Parquet" * 10)
    assert run(stub, root, "t", "--from-topic", "b") == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {root}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("window", [1, 7, 1000])
def test_batches_do_not_depend_on_the_size_of_the_windows(
    root: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(replay, "WINDOW_ROWS", window)
    archive = replay.Archive(str(root))
    parts = archive.parts([], date.min, date.max)
    assert [(part.topic, str(part.date), *part[4:]) for part in parts] == [
        ("a", DAYS[0], 30, 1, 30),
        ("a", DAYS[1], 30, 31, 60),
        ("b", DAYS[1], 20, 101, 120),
    ]
    found = [[batch.column(0).to_pylist() for batch in archive.batches(p, 8)] for p in parts]
    assert [[len(batch) for batch in each] for each in found] == [
        [8, 8, 8, 6],
        [8, 8, 8, 6],
        [8, 8, 4],
    ]
    assert [value for each in found for batch in each for value in batch] == [
        row.value for row in ROWS
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (Row(DAYS[1], "b", 107, "1"), 'offset 107 of topic "b" is in it twice on 2026-01-02'),
        (Row(DAYS[1], "b", 130, '1},{"data":2'), "value is not JSON"),
        (Row(DAYS[1], "b", 130, "1", headers="{"), "headers is not a JSON object"),
    ],
)
def test_a_record_that_cannot_be_replayed_is_reported(
    stub: StubServer, root: Path, row: Row, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_archive(root, [row], commits=1)
    assert run(stub, root, "t", "--from-topic", "b") == 1
    assert reason in capsys.readouterr().err

"""The check of an archive: holes are asked for, and what is missing is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.server import Server
from topics.client import calls
from topics.spark.client.http import TopicsClient
from topics.spark.client.servers import Servers
from topics.spark.jobs.archive_check import Checked, Hole, check, fault_of, heads, holes_in, passed
from topics.spark.jobs.archive_state import Figure
from topics.spark.source.connection import Connection
from topics.spark.source.offsets import Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SERVERS = Servers.parse("a=http://127.0.0.1:1,b=http://127.0.0.1:2")


def checked(after: int, last: int, rows: int, fault: str | None = None) -> Checked:
    return Checked(server="a", topic="t", after=after, last=last, rows=rows, lost=0, fault=fault)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with Server(tmp_path / "data", shards=1) as server:
        yield Connection.parse({"servers": f"a=http://{server.host}:{server.port}"})


def fill(client: TopicsClient, topic: str, count: int) -> None:
    """Records with the seqs 1 to ``count``, each with its seq as tag."""
    client.put_topic(topic, {})
    records = ",".join(f'{{"data":{seq},"tag":"{seq}"}}' for seq in range(1, count + 1))
    client.append(topic, f'{{"records":[{records}]}}'.encode(), count, topic)


def delete(client: TopicsClient, topic: str, *seqs: int) -> None:
    for seq in seqs:
        client._send(topic, calls.delete_records(topic, tag=str(seq)))


def test_a_run_goes_from_where_it_was_to_where_it_is() -> None:
    figures = [Figure(0, "new", 5, 3, 9), Figure(0, "old", 2, 11, 12), Figure(1, "stray", 1, 4, 4)]
    begin = {("a", "old"): Position(10, 1, 1), ("a", "idle"): Position(7, 1)}
    end = {
        ("a", "new"): Position(9, 1),
        ("a", "old"): Position(12, 1, 3),
        ("a", "idle"): Position(7, 1),
        ("a", "empty"): Position(0, 1),
    }
    found = {each.topic: each for each in passed(SERVERS, figures, begin, end)}
    assert [(name, each.after, each.last, each.rows, each.lost, each.absent) for name, each in
            sorted(found.items())] == [
        ("empty", 0, 0, 0, 0, 0),
        ("idle", 7, 7, 0, 0, 0),
        ("new", 2, 9, 5, 0, 2),
        ("old", 10, 12, 2, 2, 0),
        ("stray", 3, 4, 1, 0, 0),
    ]  # fmt: skip
    assert found["stray"].server == "b"
    assert found["stray"].fault == "1 records of a topic that the query has no offset of"
    assert [each.topic for each in found.values() if each.fault] == ["stray"]


def test_a_topic_that_was_made_again_starts_again() -> None:
    begin, end = {("a", "t"): Position(90, 1)}, {("a", "t"): Position(4, 2, 10)}
    (found,) = passed(SERVERS, [Figure(0, "t", 4, 1, 4)], begin, end)
    assert (found.after, found.last, found.rows, found.lost) == (0, 4, 4, 10)


def test_holes_are_right_only_where_the_server_has_no_record(connection: Connection) -> None:
    with connection.client(connection.servers.members[0]) as client:
        fill(client, "t", 20)
        delete(client, "t", 5, 6, 19, 20)
        assert heads(connection, "t", is_pattern=False) == {("a", "t"): 20}
        assert heads(connection, "[st]", is_pattern=True) == {("a", "t"): 20}
        assert heads(connection, "nothing", is_pattern=False) == {}
        right = [Hole(5, 6), Hole(19, 20)]
        assert fault_of(client, checked(0, 20, 16), right, 20) is None
        told = fault_of(client, checked(0, 20, 15), [*right, Hole(8, 8)], 20)
        assert told == "seq 8 is on the server and not in the files"
        assert fault_of(client, checked(0, 20, 21), [], 20) == "21 records in 20 seqs"
        told = fault_of(client, checked(0, 18, 16), [], 20)
        assert told == "it ends at seq 18, and the head was 20 before"
        assert fault_of(client, checked(0, 20, 20, "stray"), [], 20) == "stray"
        client._send("t", calls.drop_topic("t"))
        assert fault_of(client, checked(0, 20, 16), right, 20) is None
        assert fault_of(client, checked(0, 18, 18), [], 20) == "the topic is gone"


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_archive_without_a_record_that_the_server_has_does_not_agree(
    spark: SparkSession, connection: Connection
) -> None:
    with connection.client(connection.servers.members[0]) as client:
        fill(client, "t", 12)
        delete(client, "t", 4, 12)
        fill(client, "u", 3)
    before = heads(connection, ".*", is_pattern=True)
    held = [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    df = spark.createDataFrame(
        [("t", 0, seq) for seq in held], "topic STRING, partition INT, offset LONG"
    )
    each = checked(0, 12, 10)
    assert holes_in(df, each, 0) == [Hole(4, 4), Hole(12, 12)]
    assert holes_in(df, checked(3, 9, 5), 0) == [Hole(4, 4)]
    assert holes_in(df, checked(20, 22, 0), 0) == [Hole(21, 22)]
    found = {one.topic: one.fault for one in check(connection, [each], before, lambda: df)}
    assert found == {"t": None, "u": "it had the head 3 before, and the query did not come to it"}
    less = df.where("offset != 7")
    (wrong,) = check(connection, [checked(0, 12, 9)], {("a", "t"): 12}, lambda: less)
    assert wrong.fault == "seq 7 is on the server and not in the files"
    idle = checked(12, 12, 0)
    assert check(connection, [idle], {("a", "t"): 12}, lambda: df) == []

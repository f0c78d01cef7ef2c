"""``format("topics_segments")``: the columns of ``format("topics")``, from files."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.source.ddl import struct_of
from tests.support.offline_scenes import Scene, write_scene
from topics.spark.source.columns import SCHEMA, Columns
from topics.spark.source.connection import BadOption
from topics.spark.source.plan import DataLost
from topics.spark.source.segments import (
    SegmentOptions,
    SegmentsDataSource,
    SegmentsReader,
)
from topics.storage.data_dir import NotADataDirectory
from topics.storage.disk import Damaged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("segments") / "data")


def read(ddl: str = "offset BIGINT", **options: str) -> list[dict[str, object]]:
    """What tasks would give, without Spark."""
    parsed = SegmentOptions.parse(options)
    planned = SegmentsReader(parsed, Columns(struct_of(ddl), mode=parsed.read.mode))
    partitions = pickle.loads(pickle.dumps(planned.partitions()))
    reader = pickle.loads(pickle.dumps(planned))
    return [row for part in partitions for batch in reader.read(part) for row in batch.to_pylist()]


def offsets(**options: str) -> list[object]:
    return [row["offset"] for row in read(**options)]


def test_all_columns_are_those_of_the_records(scene: Scene) -> None:
    rows = read(SCHEMA, path=str(scene.path), subscribe="plain")
    found = [
        (
            row["offset"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),  # type: ignore[attr-defined]
            row["node"],
            row["key"],
            str(row["value"]).encode(),
            str(row["headers"] or "").encode(),
        )
        for row in rows
    ]
    assert found == scene.answers["plain"]
    assert {(row["topic"], row["partition"]) for row in rows} == {("plain", 0)}


def test_a_pattern_reads_several_topics(scene: Scene) -> None:
    rows = read("topic STRING", path=str(scene.path), subscribePattern=r"copies\..*")
    counts = {name: len(scene.answers[name]) for name in ("copies.a", "copies.b", "copies.c")}
    found = [row["topic"] for row in rows]
    assert {name: found.count(name) for name in counts} == counts


def test_offsets_bound_a_read_as_kafkas_do(scene: Scene) -> None:
    bounds = {"startingOffsets": '{"plain": 100}', "endingOffsets": '{"plain": {"0": 110}}'}
    found = offsets(path=str(scene.path), subscribe="plain", **bounds)
    assert found == list(range(100, 110))


def test_pieces_are_as_many_as_asked_for(scene: Scene) -> None:
    options = {"path": str(scene.path), "topic": "plain", "minPartitions": "8"}
    columns = Columns(struct_of("offset BIGINT"))
    assert len(SegmentsReader(SegmentOptions.parse(options), columns).partitions()) >= 8
    del options["minPartitions"]
    few = SegmentsReader(SegmentOptions.parse(options), columns)
    assert len(few.partitions()) == 1
    assert [*few.read(None)] == []  # type: ignore[arg-type]


def test_data_is_typed_when_it_is_asked_for(scene: Scene) -> None:
    options = {"path": str(scene.path), "subscribe": "plain", "inferSchema": "true"}
    schema = SegmentsDataSource(options).schema()
    assert schema["data"].dataType.simpleString() == "struct<id:bigint,text:string>"
    assert "value" not in schema.names
    options["columns"] = "offset,data"
    assert SegmentsDataSource(options).schema().names == ["offset", "data"]
    rows = read("data STRUCT<id: BIGINT>", path=str(scene.path), subscribe="again")
    assert [row["data"] for row in rows] == [{"id": number} for number in range(40)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"subscribe": "t"}, "no directory is named"),
        ({"path": "/x"}, "no topic is named"),
        ({"path": "/x", "subscribe": "t", "servers": "http://h:1"}, "option servers is for"),
        ({"path": "/x", "subscribe": "t", "failOnDataLoss": "false"}, "option failOnDataLoss"),
        ({"path": "/x", "subscribe": "t", "ignoreDamage": "yes"}, "option ignoreDamage"),
        ({"path": "/x", "subscribe": "t", "subscribePatern": "t"}, "is it subscribePattern"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, str], line: str) -> None:
    with pytest.raises(BadOption, match=line) as caught:
        SegmentOptions.parse(options)
    assert "\n" not in str(caught.value)


def test_a_missing_topic_or_partition_is_named(scene: Scene) -> None:
    with pytest.raises(BadOption, match='there is no topic "gone"'):
        offsets(path=str(scene.path), subscribe="gone")
    with pytest.raises(BadOption, match="names partition 1 of"):
        offsets(path=str(scene.path), subscribe="plain", startingOffsets='{"plain": {"1": 2}}')
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(DataLost, match=rf'{option} has offset 99999 .* "plain", which ends at'):
            offsets(path=str(scene.path), subscribe="plain", **{option: '{"plain": 99999}'})
    with pytest.raises(BadOption, match="columns names 'nothing'"):
        SegmentsDataSource(
            {"path": str(scene.path), "subscribe": "plain", "columns": "nothing"}
        ).schema()


def test_a_wrong_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADataDirectory, match="is no data directory"):
        offsets(path=str(tmp_path), subscribe="t")


@pytest.fixture
def torn(scene: Scene, tmp_path: Path) -> Iterator[Path]:
    """A copy without one of its segments."""
    import shutil

    path = tmp_path / "torn"
    shutil.copytree(scene.path, path, copy_function=shutil.copyfile)
    sorted(path.glob("segment/*/*.seg"))[0].unlink()
    yield path
    shutil.rmtree(path)


def test_damage_is_an_error_or_a_warning(
    torn: Path, scene: Scene, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = {"path": str(torn), "subscribePattern": ".*"}
    with pytest.raises(Damaged, match="segment named by the checkpoint is missing"):
        offsets(**wanted)
    found = offsets(**wanted, ignoreDamage="true")
    assert 0 < len(found) < sum(len(rows) for rows in scene.answers.values())
    assert "warning" in capfd.readouterr().err


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_spark_reads_the_same_records(spark: SparkSession, scene: Scene) -> None:
    spark.dataSource.register(SegmentsDataSource)
    frame = (
        spark.read.format("topics_segments")
        .option("subscribePattern", "plain|erased|long|jobs|copies.b")
        .option("maxRecordsPerPartition", "1500")
        .load(str(scene.path))
    )
    assert frame.schema.simpleString().startswith("struct<key:string,value:string,topic:string")
    rows = frame.select("topic", "offset", "key", "value", "headers").collect()
    found: dict[str, list[tuple[object, ...]]] = {}
    for topic, *rest in sorted(rows, key=lambda row: (row.topic, row.offset)):
        found.setdefault(topic, []).append(tuple(rest))
    for name, records in found.items():
        assert records == [
            (seq, tag, data.decode(), meta.decode() or None)
            for seq, _, _, tag, data, meta in scene.answers[name]
        ]
    assert sorted(found) == ["copies.b", "erased", "jobs", "long", "plain"]

"""The plan of a batch read, for every combination of bounds, against the obvious model.

The servers are lists of timestamps. No JVM and no socket is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from tests.spark.client.states import topic_info, topic_state
from topics.client.values import TopicInfo, TopicState
from topics.spark.client.http import Page, Record
from topics.spark.source import reading
from topics.spark.source.columns import Columns, schema_of
from topics.spark.source.connection import BadOption, Clients
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost

EPOCH = 7


class Log(msgspec.Struct, frozen=True):
    """The timestamps of the records 1 to ``len(ts)``. Those below ``earliest`` were evicted."""

    ts: tuple[int, ...]
    earliest: int

    @property
    def head(self) -> int:
        return len(self.ts)


class FakeClient:
    """The three requests that planning sends."""

    def __init__(self, logs: dict[str, Log]) -> None:
        self.logs = logs

    def close(self) -> None:
        """There are no connections."""

    def state(self, topic: str) -> TopicState:
        log = self.logs[topic]
        ts = log.ts[-1] if log.ts else None
        return topic_state(topic, log.head, log.earliest, EPOCH, ts)

    def listing(self, prefix: str) -> Iterator[TopicInfo]:
        for topic, log in sorted(self.logs.items()):
            if topic.startswith(prefix):
                ts = log.ts[-1] if log.ts else None
                yield topic_info(topic, log.head, log.earliest, EPOCH, ts)

    def diff(self, topic: str, *, from_seq: int, **_: Any) -> Page:
        log = self.logs[topic]
        seq = max(from_seq + 1, log.earliest)
        found = [Record(seq, log.ts[seq - 1], msgspec.Raw(b"1"))] if seq <= log.head else []
        return Page(found, seq, log.head, log.earliest, True, EPOCH, None)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    ts = sorted(draw(st.lists(st.integers(1, 30), max_size=20)))
    return Log(tuple(ts), draw(st.integers(1, len(ts) + 1)))


@st.composite
def bound(draw: st.DrawFn, side: str, topics: list[str]) -> dict[str, str]:
    """Return one way to specify a start or an end, or none."""
    keyword = "earliest" if side == "starting" else "latest"
    special = -2 if side == "starting" else -1
    named = st.dictionaries(st.sampled_from(topics), st.integers(0, 32), min_size=1)
    kind = draw(st.sampled_from(["", "keyword", "offsets", "nested", "time", "times"]))
    if kind == "keyword":
        return {f"{side}Offsets": keyword}
    if kind == "time":
        return {f"{side}Timestamp": str(draw(st.integers(0, 32)))}
    if kind == "times":
        return {f"{side}OffsetsByTimestamp": json.dumps(draw(named))}
    if kind == "":
        return {}
    # An offset above the end is an error, so most of these are small.
    offsets = draw(
        st.dictionaries(st.sampled_from(topics), st.integers(0, 21) | st.just(special), min_size=1)
    )
    value = {t: {"0": at} for t, at in offsets.items()} if kind == "nested" else offsets
    return {f"{side}Offsets": json.dumps(value)}


def given_at(options: dict[str, str], side: str, topic: str) -> tuple[str, int | None]:
    """Return the kind of a bound, offset or time, and its value, or None for all records."""
    if (time := options.get(f"{side}Timestamp")) is not None:
        return "time", int(time)
    for kind, name in (("time", f"{side}OffsetsByTimestamp"), ("offset", f"{side}Offsets")):
        if (text := options.get(name, "")).startswith("{"):
            at = json.loads(text).get(topic)
            at = at["0"] if isinstance(at, dict) else at
            return kind, None if at is None or at < 0 else at
    return "offset", None


def model(logs_of: dict[str, Log], options: dict[str, str]) -> list[tuple[str, int]] | str:
    """Return the records that the options select, or why the read is refused."""
    selected, above_end = [], False
    for topic, log in sorted(logs_of.items()):
        (start_kind, start), (end_kind, end) = (
            given_at(options, side, topic) for side in ("starting", "ending")
        )
        if start is not None and end is not None and start_kind == end_kind and start > end:
            return "crossed"
        for kind, value in ((start_kind, start), (end_kind, end)):
            above_end |= kind == "offset" and value is not None and value > log.head + 1
        # Evicted records that an offset includes are planned, so that their loss is reported.
        first = start if start_kind == "offset" and start is not None else log.earliest
        for seq in range(max(1, first), log.head + 1):
            values = {"offset": seq, "time": log.ts[seq - 1]}
            if start is not None and start_kind == "time" and values["time"] < start:
                continue
            # No server knows the time of an evicted record, so it counts as before the end.
            is_known = end_kind == "offset" or seq >= log.earliest
            if end is not None and is_known and values[end_kind] >= end:
                continue
            selected.append((topic, seq))
    return "above the end" if above_end else selected


@given(
    data=st.data(),
    logs_of=st.dictionaries(st.sampled_from(["a", "b", "c"]), logs(), min_size=1),
    pattern=st.booleans(),
    max_records=st.integers(1, 25),
    min_tasks=st.integers(1, 6),
)
def test_a_batch_read_plans_the_records_between_its_bounds_and_no_others(
    data: st.DataObject, logs_of: dict[str, Log], pattern: bool, max_records: int, min_tasks: int
) -> None:
    topics = sorted(logs_of)
    options = data.draw(bound("starting", topics)) | data.draw(bound("ending", topics))
    topic_options = {"subscribePattern": "[abc]"} if pattern else {"subscribe": ",".join(topics)}
    sizes = {"maxRecordsPerPartition": str(max_records), "minPartitions": str(min_tasks)}

    def planned() -> list[tuple[str, int]] | str:
        with patch.object(Clients, "of", lambda *_: FakeClient(logs_of)):
            try:
                read = ReadOptions.parse(
                    {"servers": "http://h:1"} | topic_options | options | sizes, "batch"
                )
                tasks = reading.BatchReader(read, Columns(schema_of(()))).partitions()
            except BadOption:
                return "crossed"
            except DataLost:
                return "above the end"
        parts = [part for task in tasks for part in task.ranges]  # type: ignore[attr-defined]
        return [(one.topic, seq) for one in parts for seq in range(one.after + 1, one.last + 1)]

    assert planned() == model(logs_of, options)

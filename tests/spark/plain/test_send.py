"""Rows are sent in their order, once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.spark.client.stub_server import Fault, StubServer
from topics.spark.client.http import Target
from topics.spark.client.keys import chunk_key
from topics.spark.errors import JobError
from topics.spark.plain.files import read_plain
from topics.spark.plain.send import send
from topics.spark.summary import Summary


def load(stub: StubServer, path: Path, **given: Any) -> Summary:
    target = Target(url=stub.url, retries=4, backoff_s=0.01, backoff_max_s=0.05)
    rows = read_plain(str(path), None, {}, given.pop("tag_column", None))
    return send(rows, "t", target=target, source=str(path), batch_records=20, **given)


def ids(stub: StubServer) -> list[int]:
    return [record["data"]["id"] for record in stub.topics["t"].records]


def test_a_job_that_is_run_again_appends_nothing(stub: StubServer, fifty_rows: Path) -> None:
    first, again = load(stub, fifty_rows), load(stub, fifty_rows)
    assert ids(stub) == [*range(50)]
    assert (first.records, first.appended, first.deduped, first.requests) == (50, 50, 0, 3)
    assert (again.appended, again.deduped, again.requests) == (0, 50, 0)
    stub.make("t").records.append({"data": 0})  # not of this job alone: the keys tell
    one, two = load(stub, fifty_rows), load(stub, fifty_rows)
    assert (one.appended, two.appended, two.deduped, two.repeated) == (50, 0, 50, 3)
    assert first.agrees
    assert again.agrees
    assert first.job_id == again.job_id


@pytest.mark.parametrize("first", [20, 37, 50])
def test_lines_that_have_grown_append_the_new_ones(
    stub: StubServer, fifty_rows: Path, first: int
) -> None:
    whole = fifty_rows.read_text()
    fifty_rows.write_text("".join(whole.splitlines(keepends=True)[:first]))
    before = load(stub, fifty_rows)
    fifty_rows.write_text(whole + '{"id": 50}\n')
    grown, again = load(stub, fifty_rows), load(stub, fifty_rows)
    assert ids(stub) == [*range(51)]
    assert (grown.records, grown.appended, grown.deduped) == (51, 51 - first, first)
    assert (again.appended, again.deduped, again.first_seq, again.last_seq) == (0, 51, 1, 51)
    assert grown.agrees
    assert again.agrees
    assert before.job_id != grown.job_id


@pytest.mark.parametrize("other", ['{"id":7}\n', ' {"id": 0} \n{"id":9}\n'])
def test_lines_in_a_topic_of_something_else_are_all_appended(
    stub: StubServer, fifty_rows: Path, tmp_path: Path, other: str
) -> None:
    (tmp_path / "other.ndjson").write_text(other)
    load(stub, tmp_path / "other.ndjson")
    summary = load(stub, fifty_rows)
    assert (summary.appended, len(ids(stub))) == (50, 50 + other.count("\n"))
    assert load(stub, fifty_rows, job_id="j").appended == 50
    stub.make("t")
    load(stub, fifty_rows)
    assert load(stub, fifty_rows, tag_column="id").appended == 50
    stub.make("t")
    load(stub, fifty_rows, tag_column="id")
    assert load(stub, fifty_rows, tag_column="id").requests == 0


def test_a_job_that_failed_half_way_goes_on_where_it_stopped(
    stub: StubServer, fifty_rows: Path
) -> None:
    stub.faults.extend([None, Fault(status=422, code="topic_full")])
    with pytest.raises(JobError) as failed:
        load(stub, fifty_rows)
    assert str(failed.value).startswith('topic "t": 422 topic_full')
    assert "20 records were appended before that; the same job" in str(failed.value)
    summary = load(stub, fifty_rows)
    assert ids(stub) == [*range(50)]
    assert (summary.appended, summary.deduped, summary.agrees) == (30, 20, True)


def test_busy_and_broken_answers_are_repeated(stub: StubServer, fifty_rows: Path) -> None:
    stub.faults.extend([Fault(status=429, code="throttled"), Fault(cut=True, commit=True)])
    summary = load(stub, fifty_rows)
    assert ids(stub) == [*range(50)]
    assert (summary.retries, summary.repeated, summary.agrees) == (2, 1, True)


def test_the_node_is_that_of_all_records_and_progress_ends_at_all(
    stub: StubServer, fifty_rows: Path
) -> None:
    out = io.StringIO()
    load(stub, fifty_rows, node="n", durability="fsync", job_id="j", progress=out)
    assert stub.topics["t"].config["durability"] == "fsync"
    assert out.getvalue().startswith("50 of 50 records, 100 %")


def test_keys_are_those_of_a_spark_job_with_one_partition(
    stub: StubServer, fifty_rows: Path
) -> None:
    load(stub, fifty_rows, job_id="j")
    rows = [f'{{"data":{{"id": {number}}}}}' for number in range(50)]
    expected = [
        chunk_key(
            "batch:j",
            "t",
            0,
            number,
            len(part := rows[20 * number : 20 * number + 20]),
            f'{{"create":false,"records":[{",".join(part)}]}}'.encode(),
        )
        for number in range(3)
    ]
    assert [*stub.topics["t"].answers] == expected

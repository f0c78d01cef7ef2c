"""The last record of each key is appended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.spark.live import Live
from topics.spark.jobs.appending import Appended
from topics.spark.jobs.cli import parser
from topics.spark.jobs.compact import run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300), pytest.mark.usefixtures("unstopped")]


def write(live: Live, topic: str, *records: dict[str, Any]) -> None:
    body = msgspec.json.encode({"records": records})
    with live.client() as client:
        client.append(topic, body, len(records), f"{topic}-{records}"[:200].encode().hex()[:200])


def records_of(live: Live, topic: str) -> list[tuple[str | None, Any, str | None, bytes]]:
    with live.client() as client:
        page = client.diff(topic, from_seq=0, limit=1000)
    return [
        (record.tag, msgspec.json.decode(record.data), record.node, bytes(record.meta))
        for record in page.records
    ]


def compact(live: Live, *line: str) -> Appended:
    return run(parser().parse_args(["compact", "--url", live.url, *line]))


def test_the_last_record_of_each_key_is_appended_unless_it_is_unchanged(
    live: Live,
) -> None:
    live.make("prices")
    write(
        live,
        "prices",
        {"tag": "a", "data": 1},
        {"tag": "b", "data": 2, "node": "n", "meta": {"é": 1}},
        {"data": "no key"},
        {"tag": "c", "data": 3},
        {"tag": "a", "data": {"x": 4}},
        {"tag": "c", "data": None},
    )
    first = compact(live, "prices", "last")
    assert first.notes == {"read": 6, "without a key": 1, "unchanged": 0}
    assert (first.appended, first.agrees) == (3, True)
    b = ("b", 2, "n", '{"é":1}'.encode())
    expected = [b, ("a", {"x": 4}, None, b""), ("c", None, None, b"")]
    assert records_of(live, "last") == expected
    second = compact(live, "prices", "last")
    assert (second.appended, second.notes["unchanged"], second.agrees) == (0, 3, True)
    assert records_of(live, "last") == expected
    third = compact(live, "prices", "living", "--drop-null")
    assert (third.notes["deleted keys"], third.appended) == (1, 2)
    assert records_of(live, "living") == expected[:2]
    # A value that the destination has is ended by the null, once.
    write(live, "prices", {"tag": "b", "data": None})
    fourth, fifth = [compact(live, "prices", "living", "--drop-null") for _ in range(2)]
    assert (fourth.notes["deleted keys"], fourth.appended, fifth.appended) == (1, 1, 0)
    null = ("b", None, None, b"")
    assert records_of(live, "living") == [*expected[:2], null]
    # After an eviction, only the changed key is appended.
    live.remove("prices", before=5)
    write(live, "prices", {"tag": "a", "data": 9})
    evicted = compact(live, "prices", "last")
    assert (evicted.notes["unchanged"], evicted.appended) == (1, 2)
    assert records_of(live, "last") == [*expected, null, ("a", 9, None, b"")]

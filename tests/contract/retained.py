"""The records that a topic retains and the losses that it reports (§1.2, §1.3, §3.3)."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api, ok
from tests.support.model import TopicModel

GAP_FIELDS = {"gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"}
FLOORS = ("head_seq", "earliest_seq", "count", "bytes")
CLASSES = ("ephemeral", "memory", "disk", "fsync")
LOSSES = ("cap", "ttl", "mixed")  # reasons of an involuntary loss within one incarnation
RECORDS = [{"data": "x" * size} for size in (300, 10, 2000, 5, 5, 700, 1, 40, 1200, 90)]


def put(api: Api, topic: str, **config: Any) -> None:
    """Create the topic, or change its config."""
    answer = api.put(topic, config)
    ok(answer, answer.status)


def erased(api: Api, topic: str, **fields: Any) -> int:
    """Delete records (§5) and return the number of deleted records."""
    return int(ok(api.call("POST", f"/v0/topics/{topic}/delete", fields))["deleted"])


def seqs(page: Any) -> list[int]:
    return [record["$seq"] for record in page["records"]]


def gap(page: Any, *reasons: str) -> tuple[int, int] | None:
    """Return both ends of the gap that the page reports, or None if it has no tombstone.

    The tombstone must have exactly the fields of §3.3 and one of ``reasons``.
    """
    tombstone = page["tombstone"]
    if tombstone is None:
        return None
    assert set(tombstone) == GAP_FIELDS, tombstone
    assert tombstone["reason"] in (reasons or LOSSES), tombstone
    assert tombstone["gap_from"] <= tombstone["gap_to"], tombstone
    assert tombstone["gap_to"] == tombstone["earliest_seq"] - 1, tombstone
    assert (tombstone["earliest_seq"], tombstone["head_seq"]) == (
        page["earliest_seq"],
        page["head_seq"],
    )
    assert isinstance(tombstone["missed_estimate"], int)
    assert 0 < tombstone["missed_estimate"] <= tombstone["gap_to"] - tombstone["gap_from"] + 1, (
        tombstone
    )
    return tombstone["gap_from"], tombstone["gap_to"]


def page_of(api: Api, topic: str, from_seq: int, **fields: Any) -> Any:
    """Return one complete page and check that its cursor fields are consistent."""
    page = ok(api.diff(topic, from_seq=from_seq, limit=1000, **fields))
    assert page["caught_up"] == (page["next_from_seq"] == page["head_seq"])
    assert page["lag"] == page["head_seq"] - page["next_from_seq"]
    assert page["earliest_seq"] <= page["head_seq"] + 1
    assert page["next_from_seq"] >= max([from_seq, *seqs(page)])
    assert page["performance"]["records_scanned"] >= len(page["records"])
    return page


def floors(api: Api, topic: str) -> dict[str, int]:
    """Return the `FLOORS` of a topic and check that its state and the list show the same values."""
    state = api.state(topic)
    assert state["next_seq"] == state["head_seq"] + 1
    (item,) = [item for item in ok(api.listing(prefix=topic))["topics"] if item["topic"] == topic]
    found = {name: state[name] for name in FLOORS}
    assert {name: item[name] for name in FLOORS} == found
    assert (found["bytes"] == 0) == (found["count"] == 0)
    return found


def assert_matches_model(api: Api, topic: str, model: TopicModel) -> None:
    """Check the state, the list and reads from every cursor against the model."""
    found = floors(api, topic)
    assert (found["head_seq"], found["earliest_seq"], found["count"]) == (
        model.head_seq,
        model.earliest_seq,
        len(model.live),
    )
    for cursor in range(model.head_seq + 1):
        page = page_of(api, topic, cursor, include_tags=True)
        assert gap(page) is None, f"from {cursor}, of {model}"
        assert [
            (record["$seq"], record["data"], record.get("$tag")) for record in page["records"]
        ] == [(seq, *model.live[seq]) for seq in model.after(cursor)]
        assert (page["next_from_seq"], page["caught_up"]) == (model.head_seq, True)
        assert page["earliest_seq"] == model.earliest_seq


def sizes(api: Api, topic: str, *records: dict[str, Any]) -> list[int]:
    """Append the records one by one to a topic without caps, and return how much each record
    increases ``bytes``.
    """
    found = []
    before = 0
    for record in records:
        answer = api.append(topic, records=[record])
        ok(answer, answer.status)
        now = api.state(topic)["bytes"]
        found.append(now - before)
        before = now
    return found


def observable_state(api: Api, topic: str) -> dict[str, Any]:
    """Return the state of a topic that readers can observe and that a restart must preserve."""
    state = api.state(topic)
    names = (
        *("head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "epoch"),
        "last_write_ts",
    )
    pages = [
        api.diff(topic, from_seq=cursor, limit=1000, include_tags=True).json()
        for cursor in range(state["head_seq"] + 1)
    ]
    for page in pages:
        del page["performance"]
        if page["tombstone"]:
            del page["tombstone"]["missed_estimate"]  # §3.3: approximate
    return {name: state[name] for name in names} | {"pages": pages}

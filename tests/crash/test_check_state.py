"""The judge of power losses is judged itself: what it must let pass, and what it must see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.campaigns.check_state import History, judge
from tests.campaigns.opened import Found

NEVER = 10**6


def history(durability: str, *steps: tuple[dict[str, Any], bool]) -> History:
    """Steps at one nanosecond each; the flag says whether the step was acknowledged before the
    loss.
    """
    made = History("t")
    for number, (note, acknowledged) in enumerate(
        [({"step": "put", "config": {"durability": durability}}, True), *steps]
    ):
        made.add(
            {
                "topic": "t",
                "sent": number,
                "acknowledged": number if acknowledged else NEVER,
                **note,
            },
            NEVER,
        )
    return made


def append(first_seq: int, *tags: str) -> dict[str, Any]:
    return {
        "step": "append",
        "first_seq": first_seq,
        "records": [{"data": tag, "tag": tag} for tag in tags],
    }


def delete(**body: Any) -> dict[str, Any]:
    return {"step": "delete", "body": body}


def found(
    *seqs: int, head: int = 4, gaps: tuple[tuple[int, int], ...] = (), next_seq: int = 0
) -> Found:
    written = {seq: "abcdef"[seq - 1] for seq in seqs}
    records = {seq: {"$seq": seq, "data": tag, "$tag": tag} for seq, tag in written.items()}
    first, end = min(seqs, default=head + 1), next_seq or head + 1
    return Found(1, head, first, len(seqs), None, records, list(gaps), [], end)


WROTE = (append(1, "a", "b"), True), (append(3, "c", "d"), True)
CAPPED = (*WROTE, ({"step": "put", "config": {"cap_records": 1}}, True))
SAME = {"step": "put", "config": {"durability": "disk"}}, True
DELETED, DELETING = ((delete(before_seq=3), done) for done in (True, False))
REMOVED, REMOVING = (({"step": "remove"}, done) for done in (True, False))
WRITING = append(5, "e"), False
ALL, TAIL_LOST = found(1, 2, 3, 4), found(1, 2, head=9, gaps=((3, 9),))


def wrote(durability: str, *steps: tuple[dict[str, Any], bool]) -> History:
    return history(durability, *WROTE, *steps)


WRONG = [
    ("a record is gone", wrote("fsync"), found(1, 2, 4), "missing"),
    ("the tail is gone", wrote("fsync"), TAIL_LOST, "missing"),
    ("a delete is undone", wrote("fsync", DELETED), ALL, "should not be"),
    ("a delete under way took a part", wrote("fsync", DELETING), found(2, 3, 4), "missing"),
    (
        "a lost delete took a part",
        wrote("disk", (delete(match="b"), True)),
        found(1, head=9, gaps=((3, 9),)),
        "missing",
    ),
    ("a put that changed something was synced", history("disk", *CAPPED), TAIL_LOST, "missing"),
    (
        "half a batch of a disk topic",
        wrote("disk"),
        found(1, 2, 3, head=9, gaps=((4, 9),)),
        "missing",
    ),
    ("a silent hole", wrote("disk"), found(1, 2, head=9), "nobody tells"),
    ("a silent eviction", history("fsync", *CAPPED), found(4), "not told"),
    (
        "an eviction brought back",
        history("fsync", *CAPPED),
        found(3, 4, gaps=((1, 2),)),
        "should not be",
    ),
    ("too much is told", wrote("fsync", DELETED), found(3, 4, gaps=((1, 2),)), "belongs there"),
    ("a seq would be given again", wrote("memory"), found(1, 2, head=2), "handed out"),
    ("memory is silent", wrote("memory"), found(head=4), "nobody tells"),
    (
        "memory makes something up",
        history("memory", (append(1, "x"), True)),
        found(1, head=1),
        "written as",
    ),
    ("the topic is gone", history("ephemeral"), None, "gone"),
    ("a removed topic is back", wrote("fsync", REMOVED), ALL, "removed"),
]


@pytest.mark.parametrize(
    ("made", "there", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_broken_promise_is_seen(made: History, there: Found | None, said: str) -> None:
    assert said in (judge(made, there) or "nothing wrong")

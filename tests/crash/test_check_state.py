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
    records = {
        seq: {"$seq": seq, "data": "abcdef"[seq - 1], "$tag": "abcdef"[seq - 1]} for seq in seqs
    }
    return Found(
        1,
        head,
        min(seqs, default=head + 1),
        len(seqs),
        None,
        records,
        list(gaps),
        [],
        next_seq or head + 1,
    )


WROTE = (append(1, "a", "b"), True), (append(3, "c", "d"), True)
CAPPED = (*WROTE, ({"step": "put", "config": {"cap_records": 1}}, True))
SAME = {"step": "put", "config": {"durability": "disk"}}, True
RIGHT = [
    ("all is there", history("fsync", *WROTE), found(1, 2, 3, 4)),
    (
        "a write under way came through",
        history("fsync", *WROTE, (append(5, "e"), False)),
        found(1, 2, 3, 4, 5, head=5),
    ),
    (
        "a write under way did not",
        history("fsync", *WROTE, (append(5, "e"), False)),
        found(1, 2, 3, 4),
    ),
    ("a delete holds", history("fsync", *WROTE, (delete(before_seq=3), True)), found(3, 4)),
    (
        "a delete under way came through",
        history("fsync", *WROTE, (delete(before_seq=3), False)),
        found(3, 4),
    ),
    (
        "a disk tail is gone, deletes and all",
        history("disk", *WROTE, (delete(before_seq=3), True)),
        found(1, 2, head=9, gaps=((3, 9),)),
    ),
    ("a disk tail is gone and told", history("disk", *WROTE), found(1, 2, head=9, gaps=((3, 9),))),
    (
        "a put that changed nothing promises nothing",
        history("disk", *WROTE, SAME),
        found(1, 2, head=9, gaps=((3, 9),)),
    ),
    ("a cap has taken and told", history("fsync", *CAPPED), found(4, gaps=((1, 3),))),
    ("memory lost all and told", history("memory", *WROTE), found(head=9, gaps=((1, 9),))),
    ("the topic was removed", history("fsync", *WROTE, ({"step": "remove"}, True)), None),
    (
        "a removal under way",
        history("fsync", *WROTE, ({"step": "remove"}, False)),
        found(1, 2, 3, 4),
    ),
]
WRONG = [
    ("a record is gone", history("fsync", *WROTE), found(1, 2, 4), "missing"),
    ("the tail is gone", history("fsync", *WROTE), found(1, 2, head=9, gaps=((3, 9),)), "missing"),
    (
        "a delete is undone",
        history("fsync", *WROTE, (delete(before_seq=3), True)),
        found(1, 2, 3, 4),
        "should not be",
    ),
    (
        "a delete under way took a part",
        history("fsync", *WROTE, (delete(before_seq=3), False)),
        found(2, 3, 4),
        "missing",
    ),
    (
        "a lost delete took a part",
        history("disk", *WROTE, (delete(match="b"), True)),
        found(1, head=9, gaps=((3, 9),)),
        "missing",
    ),
    (
        "a put that changed something was synced",
        history("disk", *CAPPED),
        found(1, 2, head=9, gaps=((3, 9),)),
        "missing",
    ),
    (
        "half a batch of a disk topic",
        history("disk", *WROTE),
        found(1, 2, 3, head=9, gaps=((4, 9),)),
        "missing",
    ),
    ("a silent hole", history("disk", *WROTE), found(1, 2, head=9), "nobody tells"),
    ("a silent eviction", history("fsync", *CAPPED), found(4), "not told"),
    (
        "an eviction brought back",
        history("fsync", *CAPPED),
        found(3, 4, gaps=((1, 2),)),
        "should not be",
    ),
    (
        "too much is told",
        history("fsync", *WROTE, (delete(before_seq=3), True)),
        found(3, 4, gaps=((1, 2),)),
        "belongs there",
    ),
    ("a seq would be given again", history("memory", *WROTE), found(1, 2, head=2), "handed out"),
    ("memory is silent", history("memory", *WROTE), found(head=4), "nobody tells"),
    (
        "memory makes something up",
        history("memory", (append(1, "x"), True)),
        found(1, head=1),
        "written as",
    ),
    ("the topic is gone", history("ephemeral"), None, "gone"),
    (
        "a removed topic is back",
        history("fsync", *WROTE, ({"step": "remove"}, True)),
        found(1, 2, 3, 4),
        "removed",
    ),
]


@pytest.mark.parametrize(
    ("made", "there"), [case[1:] for case in RIGHT], ids=[case[0] for case in RIGHT]
)
def test_what_a_loss_may_leave_passes(made: History, there: Found | None) -> None:
    assert judge(made, there) is None


@pytest.mark.parametrize(
    ("made", "there", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_broken_promise_is_seen(made: History, there: Found | None, said: str) -> None:
    assert said in (judge(made, there) or "nothing wrong")

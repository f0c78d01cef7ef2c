"""The judge of dests after a power loss is judged itself: what it must let pass and must see.

Append number n is ``[n, 0]`` at seq n of the source.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.check_routers import (
    Appended,
    CopyHistory,
    FoundCopies,
    copies_differ,
    copy_histories,
)


def appended(count: int = 4) -> Appended:
    made = Appended()
    for number in range(1, count + 1):
        made.records[number, 0] = {"data": [number, 0], "tag": f"t{number}"}
        made.seqs[number] = number, 0
    return made


def copy(seq: int, number: int, **fields: Any) -> dict[str, Any]:
    return {"$seq": seq, "$ts": 5, "$tag": f"t{number}", "data": [number, 0], **fields}


def copies(*numbers: int) -> dict[int, Any]:
    """Copies of these appends; 0 is a seq without one."""
    return {seq: copy(seq, number) for seq, number in enumerate(numbers, 1) if number}


def history(
    durability: str, *read: int, kind: str = "plain", stamped: bool = False, ever: int = 4
) -> CopyHistory:
    """A dest that these copies were read of; in the end ``ever`` come over."""
    there = copies(*read)
    later = copies(*read, *range(len(read) + 1, ever + 1)) if kind == "plain" else there
    return CopyHistory(durability, kind, True, stamped, appended(), there, later)


def found(
    *numbers: int,
    gaps: tuple[tuple[int, int], ...] = (),
    cursor: int | None = None,
    total: int | None = None,
) -> FoundCopies:
    there = copies(*numbers)
    last = max(numbers, default=0) if cursor is None else cursor
    return FoundCopies(there, [*gaps], [(last, len(there) if total is None else total)])


def one(**fields: Any) -> FoundCopies:
    """The copy of the first append."""
    return FoundCopies({1: copy(1, 1, **fields)}, [], [(1, 1)])


STAMPED = {"meta": {"_topics_router": {"source_seq": 1}}}
WRONG = [
    ("a copy is gone", history("fsync", 1, 2), found(1, gaps=((2, 9),)), "copy 2 was read and is"),
    (
        "a disk copy is gone before others",
        history("disk", 1, 2, 3),
        found(1, 0, 3, gaps=((2, 2),)),
        "copy 2 was read and is gone",
    ),
    ("a disk tail is gone silently", history("disk", 1, 2), found(1), "nobody tells"),
    ("a hole", history("fsync", 1), found(1, 0, 2), "seqs are missing, and nobody tells"),
    (
        "a copy stands twice",
        history("fsync", 1, ever=1),
        found(1, 2, 2),
        "copy 3 is (2, 0), behind",
    ),
    ("copies change places", history("fsync", ever=0), found(2, 1), "copy 2 is (1, 0), behind (2"),
    (
        "another record at a seq",
        history("fsync", 1, 2),
        found(1, 3),
        "copy 2 is {'$seq': 2, '$ts': 5, '$tag': 't3'",
    ),
    ("another time", history("fsync", 1), one(**{"$ts": 6}), "it was"),
    (
        "other bytes that nobody has read",
        history("fsync", ever=0),
        one(data=[1, 0, "x"]),
        "appended was",
    ),
    ("a copy of nothing", history("fsync", ever=0), found(9), "appended was None"),
    ("one is skipped", history("fsync", 1, ever=1), found(1, 3), "1 records are missing, 0 seqs"),
    (
        "one is burnt that was not lost",
        history("fsync", 1, 0, 2, kind="lossy"),
        found(1, 0, 2, gaps=((2, 2),)),
        "0 records are missing, 1 seqs",
    ),
    ("a total that is not theirs", history("fsync", 1), found(1, 2, total=3), "the total is 3"),
    ("a cursor ahead", history("fsync", 1), found(1, 2, cursor=3), "the cursor is 3, the last"),
    ("a cursor behind", history("fsync", 1), found(1, 2, cursor=1), "the cursor is 1, the last"),
    ("a stamp is missing", history("fsync", stamped=True, ever=0), found(1), "has the stamp None"),
    (
        "a stamp of another record",
        history("fsync", stamped=True, ever=0),
        FoundCopies({1: copy(1, 2, **STAMPED)}, [], [(2, 1)]),
        "its stamp is",
    ),
    (
        "two routers",
        history("fsync", 1),
        FoundCopies(copies(1), [], [(1, 1), (1, 1)]),
        "2 routers feed it",
    ),
]


@pytest.mark.parametrize(
    ("made", "there", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_broken_promise_is_seen(made: CopyHistory, there: FoundCopies, said: str) -> None:
    assert said in "\n".join(copies_differ(made, there))


def test_what_was_read_after_the_loss_is_not_promised(tmp_path: Path) -> None:
    route = {"kind": "plain", "root": "s", "source": "s", "guarantee": "at_least_once"}
    notes: list[dict[str, Any]] = [
        {"step": "put", "topic": "d", "config": {"durability": "fsync"}},
        {"step": "route", "topic": "d", **route},
        {"step": "append", "topic": "s", "first_seq": 1, "records": [{"data": [1, 0]}]},
        {"step": "append", "topic": "s", "first_seq": 2, "records": [{"data": [2, 0]}]},
        {"step": "copies", "topic": "d", "records": [copy(1, 1)]},
        {"step": "append", "topic": "s", "first_seq": 3, "records": [{"data": [3, 0]}]},
        {"step": "copies", "topic": "d", "records": [copy(2, 2)]},
    ]
    path = tmp_path / "acknowledged"
    moments = [{"sent": 10 * at, "acknowledged": 10 * at + 5} for at in range(len(notes))]
    lines = [json.dumps(note | moment) for note, moment in zip(notes, moments, strict=True)]
    path.write_text("\n".join(lines))
    made = copy_histories(path, 46)["d"]
    assert [*made.read] == [1]
    assert [*made.ever] == [1, 2]
    assert made.appended.seqs == {1: (1, 0), 2: (2, 0)}
    assert (made.durability, made.is_direct, made.is_stamped) == ("fsync", True, False)

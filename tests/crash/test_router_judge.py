"""The judge of the routers' campaign is judged itself: what it must let pass, and what it must see.

A story is about the source ``s`` with records 1, 2, 3, ..., and its dest ``d``. Every record is
``(seq, seq, 0)``: its origin is its seq.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.campaigns.router_history import (
    STAMP,
    Copy,
    End,
    Gap,
    History,
    Page,
    Sent,
    Stamp,
    Total,
    copy_of,
    ranges_of,
    read_of,
)
from tests.campaigns.router_judge import judge
from tests.campaigns.router_topology import (
    ANYTHING,
    CAP,
    FILTER,
    SHARDS,
    TRIM,
    Dest,
    Topology,
    topology,
)
from topics.formats.names import shard_of
from topics.formats.ranges import SeqRange

DEST = Dest("d", "s", "s", {"durability": "disk"}, "r", {})
STAMPED = DEST._replace(asked={"guarantee": "exactly_once"})
FILTERED = DEST._replace(asked={"filter": FILTER})
BARE = DEST._replace(asked={"preserve_node": False, "preserve_tag": False})
TRIMMED = DEST._replace(reasons=TRIM)
CAPPED = DEST._replace(config={"durability": "disk", "cap_records": 2}, reasons=CAP)
GATE = DEST._replace(config={"durability": "disk", "cap_records": 2, "discard": "reject"})
FORGETFUL = DEST._replace(config={"durability": "ephemeral"}, reasons=ANYTHING)


def sent(seq: int) -> Sent:
    return Sent((seq, seq, 0), "n", "red:1" if seq % 2 else "blue", 100 + seq, {"m": seq})


class Story:
    """A campaign in a few words. Each call returns the story."""

    def __init__(self, dest: Dest = DEST, *, records: int = 3, source: str = "disk") -> None:
        self.dest, self.history = dest, History()
        self.history.sent["s"] = {seq: sent(seq) for seq in range(1, records + 1)}
        self._sources = {"s": {"durability": source}}
        is_lossy = dest.reasons == TRIM
        self._topology = Topology(
            self._sources, {"d": dest}, frozenset(), frozenset({"s"} if is_lossy else ()), "cut"
        )

    def copy(self, place: int, **fields: Any) -> Copy:
        """The copy of a record, as it should be."""
        record, asked = sent(place), self.dest.asked
        stamp = Stamp("r", "s", place, f"k{place}") if self.dest.is_stamped else None
        node = record.node if asked.get("preserve_node", True) else None
        tag = record.tag if asked.get("preserve_tag", True) else None
        data, meta = record.data, record.meta
        copy = Copy(1000, 77 + place, record.origin, node, tag, data, meta, stamp)
        return copy._replace(**fields)

    def page(
        self,
        from_seq: int,
        copies: dict[int, int],
        *,
        gap: Gap | None = None,
        next_seq: int | None = None,
        **fields: Any,
    ) -> Story:
        """A read: which seqs held copies of which records."""
        last = max([from_seq, *copies, gap.last if gap else 0])
        next_seq = last if next_seq is None else next_seq
        ranges = tuple(ranges_of(copies))
        page = Page("d", from_seq, next_seq, max(next_seq, last), ranges, gap)
        self.history.take(
            page, [(seq, self.copy(place, **fields)) for seq, place in copies.items()]
        )
        return self

    def end(self, head: int, *seqs: int, total: int, count: int | None = None) -> Story:
        """All is read and nothing lags."""
        there = len(seqs) if count is None else count
        self.history.ends.append({"d": End(head, there, tuple(ranges_of(seqs)))})
        self.history.totals.append({"r": Total(total, 0)})
        self.history.saw_count("d", there)
        return self

    def restart(self, **fields: Any) -> Story:
        """The same once more."""
        self.history.ends.append({"d": self.history.ends[0]["d"]._replace(**fields)})
        self.history.totals.append(dict(self.history.totals[0]))
        return self

    def deleted(self, topic: str, last: int) -> Story:
        self.history.may_delete(topic, last)
        return self

    def killed(self, count: int) -> Story:
        self.history.kills["shard 0"] = count
        return self

    def problems(self) -> list[str]:
        return judge(self.history, self._topology).problems


def whole(dest: Dest = DEST, **fields: Any) -> Story:
    """Three records that came over."""
    return Story(dest).page(0, {1: 1, 2: 2, 3: 3}, **fields).end(3, 1, 2, 3, total=3).restart()


def trimmed(gap: Gap | None, second: int = 3) -> Story:
    """Record 2 was evicted in the source before it was forwarded."""
    return (
        Story(TRIMMED)
        .page(0, {1: 1})
        .page(1, {second: 3}, gap=gap)
        .end(second, 1, second, total=2)
        .restart()
    )


def flash(*places: int, doubled: bool = False) -> Story:
    """An ephemeral source that has the first write twice; one copy of each seq."""
    dest = STAMPED._replace(reasons=TRIM)
    story = Story(dest, source="ephemeral")
    story.history.sent["s"] = {seq: sent(seq) for seq in (2, 3)}
    copies = []
    for seq, place in enumerate(places, 1):
        record = story.copy(2 if place == 1 else place)
        stamp = Stamp("r", "s", place, "")
        copies.append((seq, record._replace(stamp=stamp)))
    seqs = [seq for seq, _ in copies]
    page = Page("d", 0, len(copies), len(copies), tuple(ranges_of(seqs)), None)
    story.history.take(page, copies)
    return story.end(len(copies), *seqs, total=len(copies))


RIGHT: list[tuple[str, Callable[[], Story]]] = [
    ("all came over", whole),
    ("all came over, with stamps", lambda: whole(STAMPED)),
    ("all came over, without node and tag", lambda: whole(BARE)),
    ("nothing was appended", lambda: Story(records=0).end(0, total=0)),
    (
        "read again, in other pages",
        lambda: whole().page(1, {2: 2}).page(0, {1: 1, 2: 2}).page(2, {3: 3}),
    ),
    (
        "the filter keeps some back",
        lambda: Story(FILTERED).page(0, {1: 1, 2: 3}).end(2, 1, 2, total=2).restart(),
    ),
    ("the source lost one, and it is told", lambda: trimmed(Gap("source_trim", 2, 2))),
    (
        "the source lost the last, and it is told",
        lambda: (
            Story(TRIMMED)
            .page(0, {1: 1, 2: 2})
            .page(2, {}, gap=Gap("source_trim", 3, 3))
            .end(3, 1, 2, total=2)
        ),
    ),
    (
        "a cap took one before it was read",
        lambda: (
            Story(CAPPED)
            .page(0, {2: 2, 3: 3}, gap=Gap("cap", 1, 1))
            .end(3, 2, 3, total=3)
            .restart()
        ),
    ),
    (
        "a cap took one after it was read",
        lambda: (
            Story(CAPPED)
            .page(0, {1: 1, 2: 2})
            .page(0, {2: 2, 3: 3}, gap=Gap("cap", 1, 1))
            .end(3, 2, 3, total=3)
        ),
    ),
    (
        "a gate whose records were deleted when they were read",
        lambda: (
            Story(GATE)
            .page(0, {1: 1, 2: 2})
            .deleted("d", 1)
            .page(0, {2: 2, 3: 3})
            .end(3, 2, 3, total=3)
        ),
    ),
    (
        "a record of the source was deleted before it was forwarded",
        lambda: Story().deleted("s", 2).page(0, {1: 1, 2: 3}).end(2, 1, 2, total=2),
    ),
    (
        "a record of the source was deleted when it was forwarded",
        lambda: whole().deleted("s", 2),
    ),
    (
        "an ephemeral dest starts over after a kill",
        lambda: (
            Story(FORGETFUL)
            .killed(1)
            .page(0, {1: 1, 2: 2})
            .page(2, {10: 2, 11: 3}, gap=Gap("mixed", 3, 9))
            .end(11, 10, 11, total=4)
        ),
    ),
    (
        "an ephemeral dest stays empty after a kill",
        lambda: Story(FORGETFUL).killed(1).page(0, {1: 1}).end(1, total=3),
    ),
    ("an ephemeral source has a write twice", lambda: flash(1, 2, 3)),
]

WRONG: list[tuple[str, Callable[[], Story], str]] = [
    (
        "a record is skipped silently",
        lambda: Story().page(0, {1: 1, 2: 3}).end(2, 1, 2, total=2),
        "1 records are missing, and nobody tells",
    ),
    (
        "the first is skipped silently",
        lambda: Story().page(0, {1: 2, 2: 3}).end(2, 1, 2, total=2),
        "1 records are missing, and nobody tells",
    ),
    (
        "the last never comes",
        lambda: Story().page(0, {1: 1, 2: 2}).end(2, 1, 2, total=2),
        "1 records are missing, and nobody tells",
    ),
    (
        "seqs are missing",
        lambda: Story().page(0, {1: 1, 2: 2, 4: 3}).end(4, 1, 2, 4, total=3),
        "1 seqs are missing, and nobody tells",
    ),
    (
        "seqs are missing at the end",
        lambda: Story().page(0, {1: 1, 2: 2, 3: 3}).end(5, 1, 2, 3, total=3),
        "2 seqs are missing, and nobody tells",
    ),
    (
        "a lossy source's record is skipped silently",
        lambda: trimmed(None, second=2),
        "1 records are missing, and nobody tells",
    ),
    ("a burnt seq is not told", lambda: trimmed(None), "1 seqs are missing, and nobody tells"),
    (
        "more seqs are burnt than records were lost",
        lambda: trimmed(Gap("source_trim", 2, 3), second=4),
        "1 records are missing, and 2 seqs",
    ),
    (
        "fewer seqs are burnt than records were lost",
        lambda: (
            Story(TRIMMED, records=4)
            .page(0, {1: 1})
            .page(1, {3: 4}, gap=Gap("source_trim", 2, 2))
            .end(3, 1, 3, total=2)
        ),
        "2 records are missing, and 1 seqs",
    ),
    (
        "a dest without limits tells a loss",
        lambda: (
            Story()
            .page(0, {1: 1})
            .page(1, {3: 3}, gap=Gap("source_trim", 2, 2))
            .end(3, 1, 3, total=2)
        ),
        "unexplained tombstone",
    ),
    (
        "a loss is told by the wrong cause",
        lambda: trimmed(Gap("cap", 2, 2)),
        "unexplained tombstone",
    ),
    (
        "a record is told as lost and is there",
        lambda: trimmed(Gap("source_trim", 2, 2)).page(0, {3: 3}, gap=Gap("source_trim", 1, 2)),
        "tells 1 as lost",
    ),
    (
        "a copy stands twice",
        lambda: Story().page(0, {1: 1, 2: 2, 3: 2, 4: 3}).end(4, 1, 2, 3, 4, total=4),
        "2 of s stands at 2 and at 3",
    ),
    (
        "a copy stands twice, with others in between",
        lambda: Story().page(0, {1: 1, 2: 2, 3: 3, 4: 1}).end(4, 1, 2, 3, 4, total=4),
        "1 of s stands at 1 and at 4",
    ),
    (
        "an exactly_once copy stands twice",
        lambda: Story(STAMPED).page(0, {1: 1, 2: 1, 3: 2, 4: 3}).end(4, 1, 2, 3, 4, total=4),
        "1 of s stands at 1 and at 2",
    ),
    (
        "two copies change places",
        lambda: Story().page(0, {1: 1, 2: 3, 3: 2}).end(3, 1, 2, 3, total=3),
        "3 is 2 of s, behind 3",
    ),
    ("a copy changes", lambda: whole().page(1, {2: 2}, whole=1), "changed: d 2 was"),
    ("a time changes", lambda: whole().page(1, {2: 2}, ts=1001), "changed: d 2 was"),
    (
        "another record stands at a seq",
        lambda: whole().page(1, {2: 3}),
        "changed: d 2 was",
    ),
    ("other data", lambda: whole(data=1), "data is 1, it was 101"),
    ("another node", lambda: whole(node="x"), "node is x, it was n"),
    ("a node that should be dropped", lambda: whole(BARE, node="n"), "node is n, it was None"),
    ("a tag that should be dropped", lambda: whole(BARE, tag="blue"), "tag is blue, it was None"),
    ("a lost tag", lambda: whole(tag=None), "tag is None, it was red:1"),
    ("other meta", lambda: whole(meta={}), "meta is {}"),
    ("a stamp is missing", lambda: whole(STAMPED, stamp=None), "the stamp is None"),
    ("a stamp nobody asked for", lambda: whole(stamp=Stamp("r", "s", 1, "")), "the stamp is Stamp"),
    (
        "a stamp names another record",
        lambda: whole(STAMPED, stamp=Stamp("r", "s", 3, "")),
        "the original stands at 1",
    ),
    (
        "the filter lets one pass",
        lambda: Story(FILTERED).page(0, {1: 1, 2: 2, 3: 3}).end(3, 1, 2, 3, total=3),
        "the filter lets blue pass",
    ),
    (
        "a copy of nothing",
        lambda: whole().page(3, {4: 9}),
        "nobody appended it",
    ),
    ("recreated", lambda: whole().page(3, {}, gap=Gap("recreated", 1, 3)), "unexplained tombstone"),
    ("a cursor goes back", lambda: whole().page(3, {}, next_seq=2), "the cursor goes back"),
    (
        "a page passes over a record",
        lambda: whole().page(0, {1: 1, 3: 3}),
        "it passes over 2, which stands there",
    ),
    (
        "a page passes over the rest",
        lambda: whole().page(0, {1: 1}, next_seq=3),
        "it passes over 2, which stands there",
    ),
    (
        "a page of records in disorder",
        lambda: whole().page(0, {2: 2, 1: 1, 3: 3}),
        "records out of order",
    ),
    (
        "a cap takes silently",
        lambda: Story(CAPPED).page(0, {2: 2, 3: 3}).end(3, 2, 3, total=3),
        "1 seqs are missing, and nobody tells",
    ),
    (
        "a total too high",
        lambda: Story().page(0, {1: 1, 2: 2, 3: 3}).end(3, 1, 2, 3, total=4),
        "forwarded_total is 4, expected: [3]",
    ),
    (
        "a total that counts what was lost",
        lambda: (
            Story(TRIMMED)
            .page(0, {1: 1})
            .page(1, {3: 3}, gap=Gap("source_trim", 2, 2))
            .end(3, 1, 3, total=3)
        ),
        "forwarded_total is 3, expected: [2]",
    ),
    (
        "a gate above its cap",
        lambda: Story(GATE).page(0, {1: 1, 2: 2, 3: 3}).end(3, 1, 2, 3, total=3),
        "held 3 records, its cap is 2",
    ),
    (
        "a gate goes on one too far",
        lambda: Story(GATE).page(0, {1: 1}).deleted("d", 1).page(0, {2: 3}).end(2, 2, total=3),
        "1 records are missing, and nobody tells",
    ),
    (
        "a gate tells a loss",
        lambda: Story(GATE).page(0, {1: 1}).page(1, {2: 2, 3: 3}).page(0, {}, gap=Gap("cap", 1, 1)),
        "unexplained tombstone",
    ),
    ("a wrong count", lambda: whole().end(3, 1, 2, 3, total=3, count=2), "count is 2, 3 records"),
    ("a restart takes records", lambda: whole().restart(records=2), "a restart makes"),
    ("a restart moves the head", lambda: whole().restart(head_seq=9), "a restart makes"),
    (
        "an ephemeral dest starts over by itself",
        lambda: Story(FORGETFUL).page(0, {1: 1, 2: 2, 3: 2, 4: 3}).end(4, 1, 2, 3, 4, total=4),
        "it goes back in its source 1 times, 0 were killed",
    ),
    (
        "an ephemeral source's seq stands twice",
        lambda: flash(2, 2, 3),
        "2 of s stands at 1 and at 2",
    ),
]


@pytest.mark.parametrize("story", [case[1] for case in RIGHT], ids=[case[0] for case in RIGHT])
def test_what_the_contract_allows_passes(story: Callable[[], Story]) -> None:
    assert story().problems() == []


@pytest.mark.parametrize(
    ("story", "said"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
def test_a_broken_promise_is_seen(story: Callable[[], Story], said: str) -> None:
    assert said in "\n".join(story().problems())


def test_a_lag_at_the_end_is_a_problem() -> None:
    story = whole()
    story.history.totals[1]["r"] = Total(3, 2)
    assert story.problems() == ["d lags by 2 after a restart"]


def test_what_was_noted_as_wrong_is_a_problem() -> None:
    story = whole()
    story.history.wrong.append("404")
    assert story.problems() == ["404"]


def test_many_problems_of_a_kind_are_summed_up() -> None:
    story = Story(records=0).page(0, {seq: seq for seq in range(1, 10)})
    assert story.problems()[-1] == "d: and 4 more of the kind"


# What is read


def rendered(seq: int, **fields: Any) -> bytes:
    head = b'{"$seq":%d,"$ts":1700000000000' % seq
    return head + b"," + json.dumps({"data": [1, 2, 0, "xx"], **fields}).encode()[1:]


def test_a_record_is_read_with_its_bytes_and_its_stamp() -> None:
    stamp = {"router": "r", "source": "s", "source_seq": 7, "key": "k", "source_epoch": 1}
    fields = {"$node": "n", "$tag": "t", "meta": {"a": 1, STAMP: stamp}}
    seq, copy = copy_of(rendered(5, **fields))
    assert (seq, copy.ts, copy.origin, copy.node, copy.tag) == (
        5,
        1700000000000,
        (1, 2, 0),
        "n",
        "t",
    )
    assert copy.meta == {"a": 1}
    assert copy.stamp == Stamp("r", "s", 7, "k")
    assert copy.data == copy_of(rendered(6))[1].data
    assert copy.whole != copy_of(rendered(5))[1].whole


def test_a_record_without_seq_and_ts_in_front_is_refused() -> None:
    with pytest.raises(ValueError, match="a record begins with"):
        copy_of(b'{"$ts":1,"$seq":1,"data":[1,2,0,""]}')


def test_a_page_is_read_with_its_tombstone() -> None:
    records = b",".join(rendered(seq) for seq in (4, 5, 7))
    tail = {"gap_from": 2, "gap_to": 3, "reason": "source_trim", "missed_estimate": 2}
    answer = b'{"records":[%b],"next_from_seq":8,"head_seq":9,"caught_up":false,"tombstone":%b}'
    ranges = (SeqRange(4, 5), SeqRange(7, 7))
    read = read_of("d", 1, answer % (records, json.dumps(tail).encode()))
    assert read.page == Page("d", 1, 8, 9, ranges, Gap("source_trim", 2, 3))
    assert [seq for seq, _ in read.copies] == [4, 5, 7]
    assert not read.caught_up


# The topology


def test_the_topology_spans_both_shards_and_all_classes() -> None:
    whole_of_it = topology()
    fan = [dest for dest in whole_of_it.dests.values() if dest.name.startswith("fan.")]
    assert len(fan) == 20
    classes = {dest.config.get("durability") for dest in fan}
    assert {"ephemeral", "memory", "disk", "fsync"} <= classes
    for dest in whole_of_it.dests.values():
        assert dest.root in whole_of_it.sources
        assert dest.feeder == dest.root or dest.feeder in whole_of_it.dests
    chain = [dest for dest in whole_of_it.dests.values() if dest.name.startswith("chain.")]
    shards = [shard_of(chain[0].root, SHARDS), *(dest.shard for dest in chain)]
    assert shards == [0, 1, 0, 1]
    for durability in ("disk", "fsync", "memory"):
        shards = [dest.shard for dest in fan if dest.config.get("durability") == durability]
        assert {*shards} == {0, 1}, durability

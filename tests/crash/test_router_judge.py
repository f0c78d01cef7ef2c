"""The judge of the routers' campaign is judged itself: what it must let pass, and what it must see.

A story is about the source ``s`` with records 1, 2, 3, ..., and its dest ``d``. Every record is
``(seq, seq, 0)``: its origin is its seq.
"""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from tests.campaigns.router_history import (
    Copy,
    End,
    Gap,
    History,
    Page,
    Sent,
    Stamp,
    Total,
    ranges_of,
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
from tests.crash.repeating import cases
from topics.formats.names import shard_of

DEST = Dest("d", "s", "s", {"durability": "disk"}, "r", {})
STAMPED = DEST._replace(asked={"guarantee": "exactly_once"})
FILTERED = DEST._replace(asked={"filter": FILTER})
BARE = DEST._replace(asked={"preserve_node": False, "preserve_tag": False})
TRIMMED = DEST._replace(reasons=TRIM)
CAPPED = DEST._replace(config={"durability": "disk", "cap_records": 2}, reasons=CAP)
GATE = DEST._replace(config={"durability": "disk", "cap_records": 2, "discard": "reject"})
VOLATILE = DEST._replace(config={"durability": "ephemeral"}, reasons=ANYTHING)


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


RIGHT = """
all came over
  whole
all came over, with stamps
  whole STAMPED
all came over, without node and tag
  whole BARE
nothing was appended
  story records=0; end 0 total=0
read again, in other pages
  whole; page 1 2:2; page 0 1:1,2:2; page 2 3:3
the filter keeps some back
  story FILTERED; page 0 1:1,2:3; end 2 1 2 total=2; restart
the source lost one, and it is told
  trimmed Gap/source_trim/2/2
the source lost the last, and it is told
  story TRIMMED; page 0 1:1,2:2; page 2 {} gap=Gap/source_trim/3/3; end 3 1 2 total=2
a cap took one before it was read
  story CAPPED; page 0 2:2,3:3 gap=Gap/cap/1/1; end 3 2 3 total=3; restart
a cap took one after it was read
  story CAPPED; page 0 1:1,2:2; page 0 2:2,3:3 gap=Gap/cap/1/1; end 3 2 3 total=3
a gate whose records were deleted when they were read
  story GATE; page 0 1:1,2:2; deleted d 1; page 0 2:2,3:3; end 3 2 3 total=3
a record of the source was deleted before it was forwarded
  story; deleted s 2; page 0 1:1,2:3; end 2 1 2 total=2
a record of the source was deleted when it was forwarded
  whole; deleted s 2
an ephemeral dest starts over after a kill
  story VOLATILE; killed 1; page 0 1:1,2:2; page 2 10:2,11:3 gap=Gap/mixed/3/9; end 11 10 11 total=4
an ephemeral dest stays empty after a kill
  story VOLATILE; killed 1; page 0 1:1; end 1 total=3
an ephemeral source has a write twice
  flash 1 2 3
"""

WRONG = """
a record is skipped silently -> 1 records are missing, and nobody tells
  story; page 0 1:1,2:3; end 2 1 2 total=2
the first is skipped silently -> 1 records are missing, and nobody tells
  story; page 0 1:2,2:3; end 2 1 2 total=2
the last never comes -> 1 records are missing, and nobody tells
  story; page 0 1:1,2:2; end 2 1 2 total=2
seqs are missing -> 1 seqs are missing, and nobody tells
  story; page 0 1:1,2:2,4:3; end 4 1 2 4 total=3
seqs are missing at the end -> 2 seqs are missing, and nobody tells
  story; page 0 1:1,2:2,3:3; end 5 1 2 3 total=3
a lossy source's record is skipped silently -> 1 records are missing, and nobody tells
  trimmed None second=2
a burnt seq is not told -> 1 seqs are missing, and nobody tells
  trimmed None
more seqs are burnt than records were lost -> 1 records are missing, and 2 seqs
  trimmed Gap/source_trim/2/3 second=4
fewer seqs are burnt than records were lost -> 2 records are missing, and 1 seqs
  story TRIMMED records=4; page 0 1:1; page 1 3:4 gap=Gap/source_trim/2/2; end 3 1 3 total=2
a dest without limits tells a loss -> unexplained tombstone
  story; page 0 1:1; page 1 3:3 gap=Gap/source_trim/2/2; end 3 1 3 total=2
a loss is told by the wrong cause -> unexplained tombstone
  trimmed Gap/cap/2/2
a record is told as lost and is there -> tells 1 as lost
  trimmed Gap/source_trim/2/2; page 0 3:3 gap=Gap/source_trim/1/2
a copy stands twice -> 2 of s stands at 2 and at 3
  story; page 0 1:1,2:2,3:2,4:3; end 4 1 2 3 4 total=4
a copy stands twice, with others in between -> 1 of s stands at 1 and at 4
  story; page 0 1:1,2:2,3:3,4:1; end 4 1 2 3 4 total=4
an exactly_once copy stands twice -> 1 of s stands at 1 and at 2
  story STAMPED; page 0 1:1,2:1,3:2,4:3; end 4 1 2 3 4 total=4
two copies change places -> 3 is 2 of s, behind 3
  story; page 0 1:1,2:3,3:2; end 3 1 2 3 total=3
a copy changes -> changed: d 2 was
  whole; page 1 2:2 whole=1
a time changes -> changed: d 2 was
  whole; page 1 2:2 ts=1001
another record stands at a seq -> changed: d 2 was
  whole; page 1 2:3
other data -> data is 1, it was 101
  whole data=1
another node -> node is x, it was n
  whole node=x
a node that should be dropped -> node is n, it was None
  whole BARE node=n
a tag that should be dropped -> tag is blue, it was None
  whole BARE tag=blue
a lost tag -> tag is None, it was red:1
  whole tag=None
other meta -> meta is {}
  whole meta={}
a stamp is missing -> the stamp is None
  whole STAMPED stamp=None
a stamp nobody asked for -> the stamp is Stamp
  whole stamp=Stamp/r/s/1/
a stamp names another record -> the original stands at 1
  whole STAMPED stamp=Stamp/r/s/3/
the filter lets one pass -> the filter lets blue pass
  story FILTERED; page 0 1:1,2:2,3:3; end 3 1 2 3 total=3
a copy of nothing -> nobody appended it
  whole; page 3 4:9
recreated -> unexplained tombstone
  whole; page 3 {} gap=Gap/recreated/1/3
a cursor goes back -> the cursor goes back
  whole; page 3 {} next_seq=2
a page passes over a record -> it passes over 2, which stands there
  whole; page 0 1:1,3:3
a page passes over the rest -> it passes over 2, which stands there
  whole; page 0 1:1 next_seq=3
a page of records in disorder -> records out of order
  whole; page 0 2:2,1:1,3:3
a cap takes silently -> 1 seqs are missing, and nobody tells
  story CAPPED; page 0 2:2,3:3; end 3 2 3 total=3
a total too high -> forwarded_total is 4, expected: [3]
  story; page 0 1:1,2:2,3:3; end 3 1 2 3 total=4
a total that counts what was lost -> forwarded_total is 3, expected: [2]
  story TRIMMED; page 0 1:1; page 1 3:3 gap=Gap/source_trim/2/2; end 3 1 3 total=3
a gate above its cap -> held 3 records, its cap is 2
  story GATE; page 0 1:1,2:2,3:3; end 3 1 2 3 total=3
a gate goes on one too far -> 1 records are missing, and nobody tells
  story GATE; page 0 1:1; deleted d 1; page 0 2:3; end 2 2 total=3
a gate tells a loss -> unexplained tombstone
  story GATE; page 0 1:1; page 1 2:2,3:3; page 0 {} gap=Gap/cap/1/1
a wrong count -> count is 2, 3 records
  whole; end 3 1 2 3 total=3 count=2
a restart takes records -> a restart makes
  whole; restart records=2
a restart moves the head -> a restart makes
  whole; restart head_seq=9
an ephemeral dest starts over by itself -> it goes back in its source 1 times, 0 were killed
  story VOLATILE; page 0 1:1,2:2,3:2,4:3; end 4 1 2 3 4 total=4
an ephemeral source's seq stands twice -> 2 of s stands at 1 and at 2
  flash 2 2 3
"""


DESTS = {
    "STAMPED": STAMPED,
    "FILTERED": FILTERED,
    "BARE": BARE,
    "TRIMMED": TRIMMED,
    "CAPPED": CAPPED,
    "GATE": GATE,
    "VOLATILE": VOLATILE,
}


def told(text: str) -> Story:
    """The story of a text: how it begins, then calls of `Story` with their arguments."""
    begins: dict[str, Any] = {"story": Story, "whole": whole, "trimmed": trimmed, "flash": flash}
    story: Any = None
    for call in text.split("; "):
        name, *words = call.split(" ")
        args = [literal(word) for word in words if "=" not in word]
        fields = {key: literal(value) for key, value in (w.split("=") for w in words if "=" in w)}
        story = (begins[name] if story is None else getattr(story, name))(*args, **fields)
    assert isinstance(story, Story)
    return story


def literal(word: str) -> Any:
    """``1:2,3:4`` is a dict, ``Gap/cap/1/2`` a tombstone, ``Stamp/r/s/1/`` a stamp."""
    kind, *parts = word.split("/")
    if kind == "Gap":
        return Gap(parts[0], int(parts[1]), int(parts[2]))
    if kind == "Stamp":
        return Stamp(parts[0], parts[1], int(parts[2]), parts[3])
    if re.fullmatch(r"[\d:,]+:\d+", word):
        pairs = (pair.split(":") for pair in word.split(","))
        return {int(seq): int(place) for seq, place in pairs}
    try:
        return ast.literal_eval(word)
    except ValueError:
        return DESTS.get(word, word)


@pytest.mark.parametrize(("story", "said"), [*cases(RIGHT), *cases(WRONG)])
def test_a_broken_promise_is_seen_and_what_the_contract_allows_passes(
    story: str, said: str
) -> None:
    problems = "\n".join(told(story).problems())
    assert said in problems
    assert bool(said) == bool(problems)


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

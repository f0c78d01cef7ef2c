"""Picking and lag: which records a router forwards next, and how many remain.

`topic_machine_picks` compares both with a list of records after random changes of a topic. This
file tests each bound and damaged records.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.shard_support import EngineHarness, fill
from tests.engine.transcript_shell import Shell
from topics.engine.removal import delete_runs
from topics.engine.routing.derivations import (
    Derivation,
    derivation_of,
    drop_other_derivations,
    set_derivation,
)
from topics.engine.routing.hops import HOPS_MAX, Hops
from topics.engine.routing.picking import Picked, pick
from topics.engine.routing.router_lag import lag
from topics.engine.store import Store, Unreadable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.topic_config import TopicConfig
from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import RecordsView
from topics.formats.ranges import IndexRun, SeqRun, runs_of_seqs

WIDE: dict[str, Any] = {
    "max_records": 9999,
    "max_bytes": 1 << 30,
    "max_runs": 999,
    "scan_records": 9999,
}
NO_HOPS = Hops()


def picked(
    harness: EngineHarness,
    cursor: int = 0,
    match: TagMatch | None = None,
    hops: Hops = NO_HOPS,
    **bounds: Any,
) -> Picked:
    return pick(harness.engine.topic("a"), harness, cursor, match, hops, **{**WIDE, **bounds})


def seqs_of(found: Picked) -> list[int]:
    return [
        seq
        for run in found.runs
        for seq in range(run.first_seq + run.start, run.first_seq + run.stop)
    ]


def test_complete_writes_are_picked_without_reading_them(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(harness, 2, 3, 1)
    topic = harness.engine.topic("a")
    locators = topic.index.locators()
    monkeypatch.setattr(harness, "records", None)
    found = picked(harness)
    assert found.runs == [(locators[0], 1, 0, 2), (locators[1], 3, 0, 3), (locators[2], 6, 0, 1)]
    assert found[1:] == (6, 0, 0, 6, topic.bytes)


@pytest.mark.parametrize(
    ("bounds", "seqs"),
    [
        *(({"max_records": 1}, [1]), ({"max_records": 4}, [1, 2, 3, 4])),
        *(({"max_records": 5}, [1, 2, 3, 4, 5]), ({"max_runs": 1}, [1, 2])),
        *(({"max_runs": 2}, [1, 2, 3, 4, 5]), ({"max_bytes": 1}, [1]), ({"max_bytes": 34}, [1])),
        *(({"max_bytes": 68 + 35}, [1, 2, 3]), ({"max_bytes": 68 + 34}, [1, 2, 3])),
        *(({"max_bytes": 68 + 33}, [1, 2]), ({"scan_records": 1}, [1, 2])),
        ({"scan_records": 2}, [1, 2, 3, 4, 5]),
    ],
)
def test_a_batch_ends_at_its_bounds(
    harness: EngineHarness, bounds: dict[str, Any], seqs: list[int]
) -> None:
    fill(harness, 2, 3, 1)
    topic = harness.engine.topic("a")
    assert topic.bytes == 6 * 34
    found = picked(harness, **bounds)
    assert (seqs_of(found), found.to_seq, found.count) == (seqs, seqs[-1], len(seqs))
    assert found.size == 34 * len(seqs)


def test_a_batch_has_one_hop_and_records_with_the_maximum_hop_are_not_forwarded(
    harness: EngineHarness,
) -> None:
    fill(harness, 3, 3, 4)
    hops = Hops()
    hops.note(3, 4, 2)
    hops.note(5, 7, HOPS_MAX)
    hops.note(8, 8, 2)
    found = [picked(harness, cursor, hops=hops) for cursor in (0, 2, 8, 4)]
    assert [(seqs_of(each), each.to_seq, each.hop) for each in found] == [
        *(([1, 2], 2, 0), ([3, 4, 8], 8, 2), ([9, 10], 10, 0), ([8], 8, 2)),
    ]
    hops.note(9, 10, HOPS_MAX)
    assert picked(harness, 8, hops=hops) == ([], 10, 0, 0, 0, 0)


# The filter


def tagged(tags: Sequence[str], writes: int = 3) -> Shell:
    """Fill topic ``a``, with ``writes`` records in each write. The tag ``-`` makes a record
    without a tag.
    """
    shell = Shell()
    for begin in range(0, len(tags), writes):
        shell.answer("hold")
        for tag in tags[begin : begin + writes]:
            shell.answer("append a 1" + (f" tag={tag}" if tag != "-" else ""))
        shell.answer("commit")
    return shell


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize(
    ("match", "seqs"),
    [
        (TagMatch("Eq", "x"), [1, 6]),
        (TagMatch("Glob", "x"), [1, 2, 6, 7]),
        (TagMatch("Glob", ""), [1, 2, 4, 6, 7]),
        (TagMatch("Eq", "none"), []),
        (TagMatch("Glob", "none"), []),
    ],
)
def test_a_filter_picks_exactly_the_records_with_a_matching_tag(
    match: TagMatch, seqs: list[int], is_sealed: bool
) -> None:
    shell = tagged(["x", "xy", "-", "y", "-", "x", "xz", "-"])
    if is_sealed:
        shell.answer("seal")
    topic = shell.world.engine.topic("a")
    found = pick(topic, shell.world, 0, match, NO_HOPS, **WIDE)
    assert (seqs_of(found), found.to_seq) == (seqs, 8)
    for scan in (1, 2, 3):
        cursor, steps = 0, []
        while cursor < 8:
            each = pick(
                topic, shell.world, cursor, match, NO_HOPS, **{**WIDE, "scan_records": scan}
            )
            assert cursor < each.to_seq
            steps += seqs_of(each)
            cursor = each.to_seq
        assert steps == seqs


# Damage


def damaged_extent(*bad_chunks: int) -> tuple[Shell, Topic]:
    """Return an extent of five records of 30,000 bytes, in which these chunks of 64 KiB are
    damaged.
    """
    shell = Shell()
    for _ in range(5):
        shell.answer(f'append a "{"x" * 30_000}" tag=t')
    shell.answer("seal")
    (extent,) = shell.world.extents.values()
    data = bytearray(extent.view._data.obj)
    for chunk in bad_chunks:
        data[extent.view.entry.offset + (chunk << 16)] ^= 1
    extent.view = ExtentView(extent.view.entry, memoryview(data), lambda *_: Unreadable())
    return shell, shell.world.engine.topic("a")


def all_steps(
    topic: Topic, store: Store, match: TagMatch | None = None, **bounds: Any
) -> list[tuple[list[int], int]]:
    """Return the picked seqs and the number of lost seqs of each step."""
    steps, cursor = [], 0
    while cursor < topic.head_seq:
        each = pick(topic, store, cursor, match, NO_HOPS, **{**WIDE, **bounds})
        assert each.to_seq > cursor
        assert not (each.runs and each.trimmed)
        steps.append((seqs_of(each), each.trimmed))
        cursor = each.to_seq
    return steps


@pytest.mark.parametrize("match", [None, TagMatch("Eq", "t")])
@pytest.mark.parametrize(
    ("bad_chunks", "steps"),
    [
        ([], [([1, 2, 3, 4, 5], 0)]),
        ([0], [([], 3), ([4, 5], 0)]),
        ([1], [([1, 2], 0), ([], 3)]),
        ([2], [([1, 2, 3, 4], 0), ([], 1)]),
        ([0, 2], [([], 3), ([4], 0), ([], 1)]),
    ],
)
def test_only_the_records_of_a_damaged_chunk_are_lost(
    match: TagMatch | None, bad_chunks: list[int], steps: list[tuple[list[int], int]]
) -> None:
    shell, topic = damaged_extent(*bad_chunks)
    assert all_steps(topic, shell.world, match) == steps
    one_by_one = all_steps(topic, shell.world, match, max_records=1)
    assert [seq for seqs, _ in one_by_one for seq in seqs] == [
        seq for seqs, _ in steps for seq in seqs
    ]
    assert sum(lost for _, lost in one_by_one) == sum(lost for _, lost in steps)


def test_damage_to_deleted_or_filtered_records_is_not_a_loss() -> None:
    shell, topic = damaged_extent(2)
    assert all_steps(topic, shell.world, TagMatch("Eq", "none")) == [([], 0)]
    delete_runs(topic, [SeqRun(5, 1)], shell.world)
    assert all_steps(topic, shell.world) == [([1, 2, 3, 4], 0)]


class DamagedStore:
    """A store in which some entries are unreadable, and some records of other entries are
    damaged.
    """

    def __init__(self, harness: EngineHarness, unreadable: set[int], bad: set[int]) -> None:
        self._harness, self._unreadable, self._bad = harness, unreadable, bad
        index = harness.engine.topic("a").index
        self._firsts: dict[int, int] = {
            locator: first for first, _, locator, _ in map(index.entry, range(len(index)))
        }

    def records(self, locator: int) -> RecordsView:
        view, first = self._harness.records(locator), self._firsts[locator]
        if first in self._unreadable:
            raise Unreadable
        return _DamagedView(view, {seq - first for seq in self._bad})

    def delete_flags(self, locator: int) -> Buffer | None:
        return self._harness.delete_flags(locator)

    def flag_deleted(self, locator: int, count: int, runs: Sequence[IndexRun], size: int) -> None:
        raise NotImplementedError

    def release(self, locators: Sequence[int]) -> None:
        raise NotImplementedError

    release_later = release


class _DamagedView(RecordsView):
    __slots__ = ("_bad_indexes",)

    def __init__(self, view: RecordsView, bad: set[int]) -> None:
        super().__init__(view.flags, view.count, view.ext_len, view.body)
        self._bad_indexes = bad

    def bad_run(self, start: int, stop: int) -> tuple[int, int] | None:
        bad = runs_of_seqs(index for index in range(start, stop) if index in self._bad_indexes)
        return (bad[0].first, bad[0].first + bad[0].length) if bad else None


@pytest.mark.slow
@given(
    writes=st.lists(st.text("xy-", min_size=1, max_size=6), min_size=1, max_size=6),
    deleted=st.sets(st.integers(1, 36)),
    bad=st.sets(st.integers(1, 36)),
    hurt_writes=st.sets(st.integers(0, 5), max_size=2),
    cursor=st.integers(0, 8),
    match=st.sampled_from([None, TagMatch("Eq", "x"), TagMatch("Glob", "")]),
    bounds=st.fixed_dictionaries(
        {
            "max_records": st.sampled_from([1, 3, 99]),
            "max_bytes": st.sampled_from([1, 100, 9999]),
            "max_runs": st.sampled_from([1, 2, 99]),
            "scan_records": st.sampled_from([1, 2, 5, 99]),
        }
    ),
)
def test_exactly_the_damaged_records_are_lost_and_all_others_are_picked(
    writes: list[str],
    deleted: set[int],
    bad: set[int],
    hurt_writes: set[int],
    cursor: int,
    match: TagMatch | None,
    bounds: dict[str, int],
) -> None:
    harness, first = EngineHarness(), 1
    wanted: list[int] = []
    lost: list[int] = []
    unreadable: set[int] = set()
    for number, tags in enumerate(writes):
        records = [{"data": 1} if tag == "-" else {"data": 1, "tag": tag} for tag in tags]
        harness.append("a", records=records)
        seqs = {first + index: tag for index, tag in enumerate(tags)}
        live = {seq: tag for seq, tag in seqs.items() if seq > cursor and seq not in deleted}
        if number in hurt_writes:
            unreadable.add(first)
            lost += range(min(live), max(live) + 1) if live else ()
        else:
            matching = [
                seq
                for seq, tag in live.items()
                if match is None or (tag != "-" and match.text in ("", tag))
            ]
            lost += [seq for seq in matching if seq in bad]
            wanted += [seq for seq in matching if seq not in bad]
        first += len(tags)
    harness.commit()
    topic = harness.engine.topic("a")
    store = DamagedStore(harness, unreadable, bad)
    delete_runs(topic, runs_of_seqs(sorted(deleted)), harness)
    found: list[int] = []
    trimmed: list[int] = []
    while cursor < topic.head_seq:
        each = pick(topic, store, cursor, match, NO_HOPS, reads_all=True, **bounds)
        assert cursor < each.to_seq
        found += seqs_of(each)
        trimmed += range(each.to_seq + 1 - each.trimmed, each.to_seq + 1)
        assert not found or found[-1] <= each.to_seq
        cursor = each.to_seq
    assert (found, trimmed) == (wanted, lost)


# Router lag: the number of live records after a cursor, and the age of the oldest


def test_lag_uses_the_ts_of_each_record_in_an_extent() -> None:
    shell = Shell()
    for line in ("append a one", "wait 10", "append a two", "wait 10", "seal", "delete a before=2"):
        shell.answer(line)
    topic = shell.world.engine.topic("a")
    assert lag(topic, shell.world, 0, shell.now.ts) == (1, 10)


def test_lag_of_unreadable_records_is_estimated_from_the_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell()
    for line in ("append a one two three four", "append a five", "wait 10", "seal"):
        shell.answer(line)
    world, topic = shell.world, shell.world.engine.topic("a")
    delete_runs(topic, [SeqRun(2, 1)], world)

    def unreadable(_: int) -> RecordsView:
        raise Unreadable

    monkeypatch.setattr(world, "records", unreadable)
    assert lag(topic, world, 0, shell.now.ts) == (4, 10)
    monkeypatch.setattr(world, "delete_flags", unreadable)
    assert lag(topic, world, 0, shell.now.ts) == (4, 10)
    assert lag(topic, world, 3, shell.now.ts) == (2, 10)


# Derivations: the progress of each router into a dest


@pytest.fixture
def topic() -> Topic:
    return Topic(1, "a", 1, TopicConfig())


def test_the_derivation_of_a_router_is_the_last_noted_one(topic: Topic) -> None:
    set_derivation(topic, 3, Derivation(12, 2))
    set_derivation(topic, 4, Derivation(5, 1))
    set_derivation(topic, 3, Derivation(13, 3))
    assert derivation_of(topic, 3, start_seq=9) == (13, 3)
    assert derivation_of(topic, 4, start_seq=9) == (5, 1)


def test_derivations_of_deleted_routers_are_dropped(topic: Topic) -> None:
    drop_other_derivations(topic, ())
    set_derivation(topic, 3, Derivation(12, 2))
    set_derivation(topic, 4, Derivation(5, 1))
    drop_other_derivations(topic, (4, 5))
    assert topic.derivations == {4: (5, 1)}
    drop_other_derivations(topic, ())
    assert topic.derivations is None


# Hops


@pytest.mark.parametrize("seed", range(20))
def test_hops_of_any_ranges_equal_those_of_a_plain_dict(seed: int) -> None:
    rng, hops, known, seq = Random(seed), Hops(), dict.fromkeys(range(200), 0), 0
    for _ in range(rng.randrange(20)):
        first = seq + rng.choice([1, 1, 2, 5])
        seq, hop = first + rng.randrange(4), rng.randrange(3)
        hops.note(first, seq, hop)
        known.update(dict.fromkeys(range(first, seq + 1), hop))
        if rng.random() < 0.2:
            floor = rng.randrange(seq + 3)
            hops.drop_to(floor)
            known.update(dict.fromkeys(range(floor + 1), 0))
            seq = max(seq, floor)
    for seq in range(150):
        hop, last = hops.at(seq)
        assert hop == known[seq]
        assert {known[each] for each in range(seq, min(last, 199) + 1)} == {hop}
        assert last >= 199 or known[last + 1] != hop

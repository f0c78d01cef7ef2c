"""Picking in the topic machine: after any changes of the topic, a router with any filter and any
bounds forwards exactly the matching records and skips exactly the lost seqs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine.topic_machine import MATCHES, NAMES
from tests.engine.topic_machine_changes import TopicChanges
from tests.engine.topic_model import TopicModel
from topics.engine.routing.hops import HOPS_MAX, Hops
from topics.engine.routing.picking import Picked, pick
from topics.engine.routing.router_lag import lag
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch, tag_match

Bounds: TypeAlias = tuple[int, int, int, int]
"""The maximum of records, bytes, runs and scanned records."""
Step: TypeAlias = tuple[str, int, int]
"""("picked", seq, hop) or ("lost", first, last)."""


class TopicPicks(TopicChanges):
    """Picks of a router."""

    @rule(
        name=NAMES,
        back=st.integers(0, 40),
        match=st.none() | MATCHES,
        ranges=st.lists(
            st.tuples(st.integers(0, 6), st.integers(1, 8), st.sampled_from([0, 1, 2, HOPS_MAX])),
            max_size=5,
        ),
        bounds=st.tuples(
            st.sampled_from([1, 2, 5, 999]),
            st.sampled_from([1, 90, 400, 9999]),
            st.sampled_from([1, 3, 999]),
            st.sampled_from([1, 2, 7, 999]),
        ),
        reads_all=st.booleans(),
    )
    def pick(
        self,
        name: str,
        back: int,
        match: Any,
        ranges: list[tuple[int, int, int]],
        bounds: Bounds,
        reads_all: bool,
    ) -> None:
        """Pick from a cursor up to the head and compare the result with the model.

        ``back``: the distance of the cursor below the head. ``ranges``: seqs that arrived through
        routers, as (seqs before them, number of seqs, hop).
        """
        topic = self._fresh(name)
        if topic is None:
            return
        model, cursor = self.models[topic.id], max(topic.head_seq - back, 0)
        hops, seq = Hops(), max(cursor - 10, 0)
        for gap, count, hop in ranges:
            hops.note(seq + gap + 1, seq + gap + count, hop)
            seq += gap + count
        filter_ = None if match is None else tag_match(match)
        found = self._picked(topic, cursor, filter_, hops, bounds, reads_all)
        assert found == expected(model, cursor, filter_, hops)
        live = [record for record in model.live if record.seq > cursor]
        age = max(self.now.ts - live[0].ts, 0) if live else 0
        assert lag(topic, self.world, cursor, self.now.ts) == (len(live), age)

    def _picked(
        self,
        topic: Topic,
        cursor: int,
        match: TagMatch | None,
        hops: Hops,
        bounds: Bounds,
        reads_all: bool,
    ) -> list[Step]:
        """Return everything that is picked up to the head."""
        records, size, runs, scan = bounds
        steps: list[Step] = []
        while True:
            picked = pick(
                topic,
                self.world,
                cursor,
                match,
                hops,
                max_records=records,
                max_bytes=size,
                max_runs=runs,
                scan_records=scan,
                reads_all=reads_all,
            )
            if picked.to_seq == cursor:
                assert picked == ([], cursor, 0, 0, 0, 0)
                assert cursor == topic.head_seq, "picking continues up to the head"
                return steps
            assert cursor < picked.to_seq <= topic.head_seq
            steps += self._steps_of(picked, bounds)
            if steps and steps[-1][0] == "picked":
                assert steps[-1][1] <= picked.to_seq
            cursor = picked.to_seq

    def _steps_of(self, picked: Picked, bounds: Bounds) -> list[Step]:
        if picked.trimmed:
            assert (picked.runs, picked.count, picked.size) == ([], 0, 0)
            assert picked.hop < HOPS_MAX
            return [("lost", picked.to_seq + 1 - picked.trimmed, picked.to_seq)]
        slices = [self.world.records(run.locator).slice(run.start, run.stop) for run in picked.runs]
        shown = [msgspec.json.decode(b"".join((b"[", each, b"]"))) for each in slices]
        sizes = [self.world.records(run.locator).size(run.start, run.stop) for run in picked.runs]
        seqs = [record["$seq"] for records in shown for record in records]
        assert seqs == [
            seq
            for run in picked.runs
            for seq in range(run.first_seq + run.start, run.first_seq + run.stop)
        ]
        assert (picked.count, picked.size) == (len(seqs), sum(sizes))
        records, size, runs, _ = bounds
        assert len(picked.runs) <= runs
        assert picked.count <= records
        assert picked.size <= size or picked.count == 1
        return [("picked", seq, picked.hop) for seq in seqs]


def lost_at(first: int, last: int, hops: Hops) -> Iterator[Step]:
    """Yield the lost ranges by their hops. Records with the maximum hop are skipped."""
    while first <= last:
        hop, end = hops.at(first)
        end = min(end, last)
        if hop < HOPS_MAX:
            yield "lost", first, end
        first = end + 1


def expected(model: TopicModel, cursor: int, match: TagMatch | None, hops: Hops) -> list[Step]:
    """Return the steps of a simple router that visits one seq after another."""
    steps: list[Step] = []
    floor = max(floor for cause, floor in model.floors.items() if cause != "ttl")
    if cursor + 1 < floor:
        steps += lost_at(cursor + 1, floor - 1, hops)
        cursor = floor - 1
    steps_by_seq: list[Step] = [
        step
        for first, last in sorted([*model.losses, *model.trimmed])
        for step in lost_at(max(first, cursor + 1), last, hops)
    ]
    wanted = model.matching(model.head + 1, match)
    for seq in sorted(wanted):
        hop, last = hops.at(seq)
        assert last >= seq
        if seq > cursor and hop < HOPS_MAX:
            steps_by_seq.append(("picked", seq, hop))
    return steps + sorted(steps_by_seq, key=lambda step: step[1])

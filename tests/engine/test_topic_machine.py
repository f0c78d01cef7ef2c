"""Compare topics that evict records with a list of records. Caps, age, deletes, durability
classes, clock steps, sealing, checkpoints and restarts happen in any order.

``TOPIC_MACHINE_EXAMPLES=20000 python -m pytest tests/engine/test_topic_machine.py`` searches
longer.
"""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from tests.engine.shard_machine import LONG
from tests.engine.topic_machine import NAMES, Flags, Models
from tests.engine.topic_machine_picks import TopicPicks
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.formats.disk.frames import Frame, FrameKind

EXAMPLES = int(os.environ.get("TOPIC_MACHINE_EXAMPLES", "60"))


@settings(max_examples=EXAMPLES, stateful_step_count=50)
class Retention(TopicPicks):
    """Reads, checkpoints, restarts and invariants."""

    @rule(
        name=NAMES,
        back=st.integers(0, 40),
        limit=st.sampled_from([1, 2, 5, 1000]),
        nodes=st.sets(st.sampled_from(["n", "m"])),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        epoch=st.sampled_from([None, None, 0, 1]),
        hidden=st.sampled_from([0, 0, 1, 3, 12]),
        until=st.sampled_from([None, None, 0, 1, 5, 20]),
    )
    def read(
        self,
        name: str,
        back: int,
        limit: int,
        nodes: set[str],
        flags: Flags,
        epoch: int | None,
        hidden: int,
        until: int | None,
    ) -> None:
        """Read a page and compare it with the model.

        ``hidden``: the number of seqs below the head that the reader must not see. ``until``: the
        number of seqs below the head that it does not request.
        """
        topic = self._fresh(name)
        if topic is not None:
            head = topic.head_seq
            until_seq = None if until is None else max(head - until, 0)
            bounds = max(head - hidden, 0), until_seq
            self._check_read(
                topic,
                max(head + 1 - back, 0),
                limit,
                nodes,
                flags,
                epoch,
                reasons=True,
                bounds=bounds,
            )

    def _check_read(
        self,
        topic: Topic,
        from_seq: int,
        limit: int,
        nodes: set[str],
        flags: Flags,
        epoch: int | None,
        *,
        reasons: bool,
        bounds: tuple[int | None, int | None] = (None, None),
    ) -> None:
        model = self.models[topic.id]
        asked_epoch = None if epoch is None else topic.epoch + epoch
        tags, meta, data = flags
        head, until = bounds
        view = Diff(
            from_seq,
            limit,
            frozenset(nodes),
            tags,
            meta,
            epoch=asked_epoch,
            include_data=data,
            until_seq=until,
        )
        page = read(topic, view, self.world, head_seq=head)
        recreated = epoch == 1 or (epoch is None and from_seq > model.head)
        head = model.head if head is None else head
        expected = model.read(
            from_seq, limit, nodes, recreated, flags, head, head if until is None else until
        )
        assert page.head_seq == head
        assert page.earliest_seq == min(model.start, head + 1)
        assert msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks))) == expected.records
        assert (page.count, page.scanned) == (len(expected.records), expected.scanned)
        assert page.next_from_seq == expected.next_from_seq
        found = page.tombstone and (
            page.tombstone.gap_from,
            page.tombstone.gap_to,
            page.tombstone.reason,
        )
        assert (
            found == expected.tombstone
            if reasons
            else (found and found[:2]) == (expected.tombstone and expected.tombstone[:2])
        )

    # Restarts

    def restart_world(self, power: bool) -> list[Frame]:
        frames = self.world.restart(self.now, self.checkpoint, power=power)
        self.held = None
        self._rebuild_models(power)
        self._check_everything()
        return frames

    def _check_everything(self) -> None:
        engine = self.world.engine
        self.names = {topic.name: topic.id for topic in engine.topics.values()}
        assert self.names == {model.name: topic_id for topic_id, model in self.models.items()}
        for topic_id, topic in engine.by_id.items():
            model = self.models[topic_id]
            if self.checkpoint is not None and topic_id in self.kept_in_memory | self.unlogged:
                # The checkpoint contains evictions that were caused by records in memory, deletes
                # of these records, and floors that readers saw but the log lacks.
                assert topic.start_seq >= model.start
                model.cut(topic.start_seq)
                model.losses, model.floors["loss"] = list(topic.losses), topic.loss_floor
                model.floors["cap"] = max(model.floors["cap"], topic.cap_floor)
                if topic_id in self.unlogged:
                    model.floors["ttl"] = max(model.floors["ttl"], topic.ttl_floor)
            near = {
                seq + off for record in model.records for seq in (record.seq,) for off in (-1, 0, 1)
            }
            for from_seq in sorted({0, topic.head_seq - 1, topic.head_seq, *near}):
                if 0 <= from_seq <= topic.head_seq:
                    self._check_read(
                        topic, from_seq, 1000, set(), (True, True, True), 0, reasons=False
                    )
            assert topic.evict_floor == max(model.floors.values())
            # A frame may record a floor later than it moved. In the meantime another cause may
            # have removed the same records.
            model.floors = {
                "cap": topic.cap_floor,
                "ttl": topic.ttl_floor,
                "loss": topic.loss_floor,
                "trim": topic.trim_floor,
            }

    def _rebuild_models(self, power: bool) -> None:
        models: Models = {}
        for logged in self.world.log:
            if logged.effect is not None:
                logged.effect(models)
        for topic_id, model in models.items():
            reserved = self._reserved(topic_id)
            durability = model.config.durability
            if (
                durability == "ephemeral" or (power and durability != "fsync")
            ) and model.head < reserved:
                model.lose(model.head + 1, reserved)
            model.settle()
        self.models = models

    def _reserved(self, topic_id: int) -> int:
        kinds = (FrameKind.TOPIC, FrameKind.SEQS_RESERVED)
        headers = [logged.header for logged in self.world.log]
        return max(
            header.first_seq
            for header in headers
            if header.topic_id == topic_id and header.kind in kinds
        )

    # Invariants

    @invariant()
    def the_engine_equals_the_model(self) -> None:
        engine = self.world.engine
        assert {name: topic.id for name, topic in engine.topics.items()} == self.names
        for topic_id in self.names.values():
            topic, model = engine.by_id[topic_id], self.models[topic_id]
            assert (topic.head_seq, topic.count, topic.bytes) == (
                model.head,
                model.count,
                model.bytes,
            )
            assert topic.start_seq == topic.earliest_seq == model.start
            floors = topic.floors
            assert {cause: getattr(floors, cause) for cause in model.floors} == model.floors
            assert topic.evict_floor <= topic.start_seq
            assert topic.committed == model.config
            assert list(topic.losses) == model.losses
            assert list(topic.trimmed) == model.trimmed
            assert not topic.committed.cap_records or topic.count <= topic.committed.cap_records
            assert topic.index.totals(0, len(topic.index)) == (topic.count, topic.bytes)
            if self.world.pending == []:
                assert topic.pending_skipped == 0
                held = [self.held[0]] if self.held and self.held[0].topic is topic else []
                count, size = (
                    sum(change.count for change in held),
                    sum(change.size for change in held),
                )
                assert (topic.pending, topic.pending_bytes, topic.next_seq) == (
                    len(held),
                    size,
                    topic.head_seq + 1 + count,
                )


TestRetention = pytest.mark.slow(Retention.TestCase)


@pytest.mark.slow
@pytest.mark.timeout(600)  # 15 s of one core
def test_topics_equal_their_models_after_every_step_of_a_long_run() -> None:
    run_state_machine_as_test(Retention, settings=settings(LONG, max_examples=20))

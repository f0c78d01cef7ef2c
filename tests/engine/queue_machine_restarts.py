"""The complete queue machine: checkpoints, restarts and invariants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.engine.queue_machine import NAMES, Models
from tests.engine.queue_machine_moves import QueueMoves
from tests.engine.queue_states import check_lists, check_nothing_is_left
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.snapshot import job_items, snapshot_topic, topic_items
from topics.engine.topic import Topic
from topics.formats.disk.frames import Frame


class Queues(QueueMoves):
    """Reads, checkpoints, restarts and invariants."""

    @rule(name=NAMES, node=st.none() | st.just("n"), after=st.integers(0, 9))
    def get(self, name: str, node: str | None, after: int) -> None:
        """Compare the counters and the leases with the model, as `GET` returns them."""
        topic = self.topic(name)
        if topic is None:
            return
        model, jobs, now = self.models[topic.id], self.jobs(topic), self.now
        jobs.advance(now.ms)
        assert tuple(jobs.counters(topic.count)) == tuple(model.counters(now.ms))
        shown = claims.leases(topic, after, 3, node, now)
        held = [job for job in model.held(node) if job.seq > after]
        assert [view[:-1] for view in shown] == [
            (job.seq, job.node, job.number, now.ts + job.at_ms - now.ms, job.deliveries)
            for job in held[:3]
        ]
        soonest = model.next_moment(now.ms)
        assert now.ms < jobs.next_at, "no job becomes claimable before the next deadline"
        if soonest is not None:
            assert jobs.next_at <= soonest
        check_lists(topic, model, now.ms, is_lazy=False)

    # Checkpoints and restarts

    @rule(is_wanted=st.sampled_from([True, False, False, False]))
    def stop_cleanly(self, is_wanted: bool) -> None:
        """Write the last checkpoint of a process and start the next process."""
        if not is_wanted:
            return
        self.commit_all()
        self.checkpointing, self.is_last = None, True
        self.whole_checkpoint()
        self.is_last = False
        self.restart(power=False, share=10, is_wanted=True, old=False)

    def keep_topics(self, made: dict[str, Any]) -> Iterator[Topic]:
        made["rows"] = {}
        for topic in topic_items(self.world.engine.table):
            if topic.floor_due:
                self.unlogged.add(topic.id)
            kept = snapshot_topic(topic, self.world.settled_position(topic))
            made["topics"].append(kept)
            rows: dict[int, Any] = {}
            made["rows"][topic.id] = rows, self.models[topic.id].dead_lettered
            yield topic
            made["jobs"] += [(topic.id, part) for part in self._parts(topic, rows)]
            yield topic

    def _parts(self, topic: Topic, rows: dict[int, Any]) -> list[dict[str, Any]]:
        """Return the jobs that the checkpoint stores. They may have changed since it stored their
        topic.
        """
        model = self.models.get(topic.id)
        if model is None:
            return []
        self.jobs(topic).advance(self.now.ms)
        model.advance(self.now.ms)
        reserved = [jobs for at, jobs in self.reserved if at == topic.id]
        rows |= model.kept_rows(self.now, reserved, is_last=self.is_last)
        return list(job_items(topic, self.now, is_last=self.is_last))

    def restart_world(self, power: bool) -> list[Frame]:
        self.now = Now(self.now.ts, 77 + self.now.ms // 3)  # Another monotonic clock
        frames = self.world.restart(self.now, self.checkpoint, power=power)
        self._rebuild_models()
        self.begin_process()
        return frames

    def _rebuild_models(self) -> None:
        models: Models = {}
        kept = {} if self.checkpoint is None else self.checkpoint["rows"]
        positions = (
            {}
            if self.checkpoint is None
            else {topic["id"]: topic["position"] for topic in self.checkpoint["topics"]}
        )
        for logged in self.world.log:
            for topic_id in [at for at, lsn in positions.items() if lsn <= logged.header.lsn]:
                del positions[topic_id]
                if topic_id in models:
                    models[topic_id].take_over(*kept[topic_id])
            if logged.effect is not None:
                logged.effect(models)
        for topic_id in positions.keys() & models.keys():
            models[topic_id].take_over(*kept[topic_id])
        engine = self.world.engine
        self.names = {topic.name: topic.id for topic in engine.topics.values()}
        assert self.names == {model.name: topic_id for topic_id, model in models.items()}
        for topic_id, model in models.items():
            model.delete([seq for seq, job in model.jobs.items() if not job.logged])
            if self.checkpoint is not None and topic_id in self.kept_in_memory | self.unlogged:
                # The checkpoint contains floors that were never written to the log.
                assert engine.by_id[topic_id].start_seq >= min(model.jobs, default=0)
                model.cut(engine.by_id[topic_id].start_seq)
            model.begin(self.now)
        self.models = models

    # Invariants

    @invariant()
    def streams_that_hold_fewer_jobs_are_reported(self) -> None:
        for stream in self.streams.values():
            topic = self.world.engine.by_id.get(stream.topic_id)
            if topic is not None:
                held = stream.holder.held
                is_reported = stream.holder in self.jobs(topic).leases.loosened
                assert is_reported or held >= self.held_by_streams.get(stream.number, 0)
                self.held_by_streams[stream.number] = held
        for name in self.names.values():
            self.jobs(self.world.engine.by_id[name]).leases.loosened.clear()

    @invariant()
    def the_engine_equals_the_model(self) -> None:
        engine = self.world.engine
        assert {name: topic.id for name, topic in engine.topics.items()} == self.names
        for topic_id in self.names.values():
            topic, model = engine.by_id[topic_id], self.models[topic_id]
            assert (topic.count, topic.bytes) == (len(model.jobs), model.bytes)
            assert topic.committed == model.config
            assert topic.start_seq == min(model.jobs, default=topic.head_seq + 1)
            check_lists(topic, model, self.now.ms, is_lazy=True)
            if not model.jobs and not self.world.pending:
                check_nothing_is_left(topic)

    def teardown(self) -> None:
        """Check that an emptied queue holds no state after all deadlines have passed."""
        if not hasattr(self, "world"):
            return
        self.commit_all()
        for name in self.names:
            self.put(name, {"ttl_ms": 0, "cap_records": 0, "cap_bytes": 0})
            self.delete_records(name, -1, None)
        self.commit_all()
        self.time_passes(1 << 40)
        for name in self.names:
            self.claim(name, [("n", 1, 100)], False)
            self.get(name, None, 0)
            check_nothing_is_left(self.world.engine.topics[name], is_lazy=False)

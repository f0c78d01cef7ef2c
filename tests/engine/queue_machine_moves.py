"""Rules of the queue machine for moves: exhausted jobs to their dead-letter topic, records to any
topic.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.queue_machine import NAMES, Effect
from tests.engine.queue_machine_leases import QueueLeases
from tests.engine.queue_model import ANYWHERE, Job, QueueModel
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.queue import claims
from topics.engine.topic import Topic
from topics.formats.disk.frames import FrameKind

WHICH = st.integers(0, 3)


class QueueMoves(QueueLeases):
    """Moves out of the queue. The append to the other topic is not part of this machine."""

    # Dead letters

    @rule(name=NAMES, count=st.integers(1, 3))
    def begin_move(self, name: str, count: int) -> None:
        topic = self.topic(name)
        if topic is None or topic.id in self.busy:
            return
        model, jobs = self.models[topic.id], self.jobs(topic)
        is_known = bool(jobs.dead_lettering)  # A batch is already in flight
        expected = list(jobs.dead_lettering or jobs.dead)[:count]
        change = lease_jobs.begin_dead_lettering(topic, count, self.now)
        seqs = list(change.seqs)
        assert seqs == expected
        if not seqs:
            assert not change.frames
            return
        self.busy.add(topic.id)
        if is_known:
            assert not change.frames
            self.moving.append((topic.id, seqs))
            return

        def begin() -> None:
            model.begin_move(seqs)
            if change.frames:
                model.mark_dying(seqs, is_dying=True)

        take_back = self.noted(topic, change, begin)
        assert bool(change.frames) == (topic.config.durability != "ephemeral")
        if not change.frames:
            self.moving.append((topic.id, seqs))
            return
        assert change.sync, "no copy is appended before a restart would find the move"

        counts = {seq: model.jobs[seq].deliveries for seq in seqs}

        def replay(model: QueueModel) -> None:
            for seq, deliveries in counts.items():
                model.apply_frame([seq], state="dying", logged_dying=True, deliveries=deliveries)

        effect: Effect = lambda models: replay(models[topic.id])  # noqa: E731

        def undone() -> None:
            take_back()
            self.busy.discard(topic.id)

        self.submit(
            change,
            {FrameKind.LEASE: effect},
            lambda: self.moving.append((topic.id, seqs)),
            undone,
        )

    @precondition(lambda self: self.moving)
    @rule(which=WHICH, is_refused=st.sampled_from([False, False, True]))
    def end_move(self, which: int, is_refused: bool) -> None:
        """End a move: the dead-letter topic contains the jobs, or it has refused them."""
        topic_id, seqs = self.moving.pop(which % len(self.moving))
        topic = self.world.engine.by_id.get(topic_id)
        if topic is None:
            return
        self.topic(topic.name)
        model = self.models[topic_id]
        remaining = sorted(seq for seq in seqs if seq in model.jobs)
        if is_refused:
            self.busy.discard(topic_id)
            lease_jobs.return_to_dead(topic, seqs)
            model.keep_dead(seqs)
            return
        change = finish_jobs.remove_dead_lettered(topic, seqs, self.now)
        assert list(change.seqs) == remaining
        is_logged = bool(change.frames)

        def committed() -> None:
            self.models[topic_id].dead_lettered += len(remaining)
            self.busy.discard(topic_id)

        def replay(model: QueueModel) -> None:
            model.dead_lettered += len(remaining)

        self.finish(
            topic, change, remaining, committed, replay, lambda: self.busy.discard(topic_id)
        )
        assert is_logged or not remaining or not model.jobs[remaining[0]].logged

    # Redrive

    @rule(name=NAMES, picks=st.lists(st.integers(-1, 8), min_size=1, max_size=4, unique=True))
    def reserve(self, name: str, picks: list[int]) -> None:
        topic = self.topic(name)
        if topic is None:
            return
        model = self.models[topic.id]
        live = sorted(model.jobs)
        seqs = sorted({live[pick % len(live)] for pick in picks}) if live else []
        expected = model.reserve(seqs, self.now.ms)
        self.jobs(topic).advance(self.now.ms)
        assert claims.reserve(topic, seqs, self.now) == list(expected)
        if expected:
            self.reserved.append((topic.id, expected))

    @precondition(lambda self: self.reserved)
    @rule(which=WHICH, is_moved=st.booleans())
    def end_redrive(self, which: int, is_moved: bool) -> None:
        """End a redrive: the target topic contains the records, or it has refused them."""
        topic_id, jobs = self.reserved.pop(which % len(self.reserved))
        topic = self.world.engine.by_id.get(topic_id)
        if topic is None:
            return
        self.topic(topic.name)
        if not is_moved:
            self._put_back(topic, jobs)
            return
        seqs = list(jobs)
        change = finish_jobs.remove(topic, seqs, self.now)
        assert list(change.seqs) == seqs
        self.finish(topic, change, seqs, take_back=lambda: self.reserved.append((topic_id, jobs)))

    def _put_back(self, topic: Topic, jobs: dict[int, Job]) -> None:
        claims.unreserve(topic, list(jobs), self.now)
        model = self.models[topic.id]
        model.unreserve(jobs.values(), self.now)
        passed = [seq for seq in jobs if seq < self.jobs(topic).cursor and seq in model.jobs]
        for job in map(model.jobs.__getitem__, passed):
            # Later jobs have been claimed, so that this job is the first of the free ones.
            if job.state == "waiting" and not job.due_ts:
                job.state, job.at_ms = "free", ANYWHERE

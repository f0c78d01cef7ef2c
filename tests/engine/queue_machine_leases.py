"""Rules of the queue machine for the calls of workers: claims, acks, nacks, extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.queue_claims import check_pass
from tests.engine.queue_machine import NAMES, NODES, Effect, Granted, Stream
from tests.engine.queue_machine_records import QueueRecords
from tests.engine.queue_model import Lease, QueueModel, keeps_leases
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.change import Change
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.queue.leases import LeaseHolder, lease_id
from topics.engine.topic import Topic
from topics.formats.disk.frames import FrameKind

LEASE_MS = st.sampled_from([100, 100, 120, 300])
ASKS = st.lists(
    st.tuples(NODES | st.integers(0, 4), st.integers(1, 4), LEASE_MS), min_size=1, max_size=3
)
PICKS = st.lists(st.integers(0, 40), min_size=1, max_size=4)
TOKENS = st.sampled_from(["none", "current", "stale"])
Ours = tuple[QueueModel, list[int], list[int], Sequence[str] | None]


class QueueLeases(QueueRecords):
    """The calls of workers."""

    # Claims

    @rule(topic=NAMES, node=NODES)
    def open_stream(self, topic: str, node: str) -> None:
        if topic in self.names and len(self.streams) < 3:
            self.stream_count = number = self.stream_count + 1
            self.streams[number] = Stream(
                self.names[topic], number, LeaseHolder(node, is_stream=True)
            )

    @rule(name=NAMES, requests=ASKS, evenly=st.booleans())
    def claim(self, name: str, requests: list[tuple[str | int, int, int]], evenly: bool) -> None:
        """Claim jobs. Each of ``requests`` is the request of a polling node or of a stream."""
        topic = self.topic(name)
        if topic is None:
            return
        claimers = [self._claimer(topic, who) for who, _, _ in requests]
        passed = [
            ClaimRequest(holder, capacity, lease_ms)
            for (holder, _), (_, capacity, lease_ms) in zip(claimers, requests, strict=True)
        ]
        model, jobs = self.models[topic.id], self.jobs(topic)
        dead = set(jobs.dead)
        changes = lease_jobs.claim(
            self.world.engine.table, topic, passed, self.now, evenly=evenly, max_bytes=1 << 20
        )
        taken = [change.seqs for change in changes]
        found = set(jobs.dead) - dead
        check_pass(
            model,
            [capacity for _, capacity, _ in requests],
            taken,
            found,
            self.now.ms,
            evenly=evenly,
        )
        model.die(found)
        for request, (_, stream), change in zip(passed, claimers, changes, strict=True):
            self._check_records(model, change)
            leases = [Lease(*job[:4]) for job in change.jobs]
            self._note_granted(topic, request.holder.node, leases)
            self._claimed(topic, change, leases, request, stream)

    def _claimer(self, topic: Topic, who: str | int) -> tuple[LeaseHolder, int]:
        stream = None if isinstance(who, str) else self.streams.get(who)
        if stream is not None and stream.topic_id == topic.id:
            return stream.holder, stream.number
        node = who if isinstance(who, str) else "n"
        return jobs_of(topic).leases.poller(node), 0

    def _check_records(self, model: QueueModel, change: LeaseChange) -> None:
        assert [job.seq for job in change.jobs] == list(change.seqs)
        for job in change.jobs:
            assert msgspec.json.decode(job.record) == model.jobs[job.seq].shown

    def _note_granted(self, topic: Topic, node: str, leases: Iterable[Lease]) -> None:
        for lease in leases:
            assert lease.number not in self.numbers, "a lease number identifies one lease"
            self.numbers.add(lease.number)
            self.granted.append(Granted(topic.id, lease.seq, node, lease_id(lease.number)))
        del self.granted[:-40]

    def _claimed(
        self,
        topic: Topic,
        change: LeaseChange,
        leases: list[Lease],
        request: ClaimRequest,
        stream: int,
    ) -> None:
        node, now = request.holder.node, self.now

        def replay(model: QueueModel) -> None:
            for lease in leases:
                model.apply_frame(
                    [lease.seq],
                    state="held",
                    node=node,
                    number=lease.number,
                    until_ts=lease.deadline_ts,
                    deliveries=lease.deliveries,
                )

        self.lease_change(
            topic,
            change,
            lambda model: model.claim(leases, node, stream, request.lease_ms, now),
            replay,
        )

    def lease_change(
        self,
        topic: Topic,
        change: LeaseChange,
        apply: Callable[[QueueModel], None],
        replay: Callable[[QueueModel], None],
    ) -> None:
        """Apply a change of leases, which takes effect before its commit. ``replay`` is the effect
        of its replayed frame on the model.
        """
        model = self.models[topic.id]

        def apply_change() -> None:
            apply(model)
            if change.frames:
                model.mark_dying(change.seqs, is_dying=False)

        take_back = self.noted(topic, change, apply_change)
        assert bool(change.frames) == (bool(change.seqs) and keeps_leases(topic.config))
        if change.frames:
            effect: Effect = lambda models: replay(models[topic.id])  # noqa: E731
            self.submit(change, {FrameKind.LEASE: effect}, take_back=take_back)

    def released_effect(
        self, topic: Topic, seqs: Sequence[int], until_ts: int, uncounted: int = 0
    ) -> Callable[[QueueModel], None]:
        """Return the effect of a replayed frame that makes these jobs claimable again from
        ``until_ts`` on.
        """
        counts = {seq: self.models[topic.id].jobs[seq].deliveries - uncounted for seq in seqs}

        def replay(model: QueueModel) -> None:
            for seq, deliveries in counts.items():
                model.apply_frame([seq], state="hidden", until_ts=until_ts, deliveries=deliveries)

        return replay

    def noted(self, topic: Topic, change: Any, apply: Callable[[], None]) -> Callable[[], None]:
        """Apply the change to the model and return the function that takes it back."""
        model = self.models[topic.id]
        before = model.kept(change.seqs)
        apply()
        after = model.kept(change.seqs)
        return lambda: model.restore(before, after)

    @rule(name=NAMES, picks=PICKS)
    def unclaim(self, name: str, picks: list[int]) -> None:
        """Return the jobs of a claim whose response reached no client."""
        topic = self.topic(name)
        if topic is None:
            return
        model = self.models[topic.id]
        model.advance(self.now.ms)
        held = {job.seq: job.number for job in model.held()}
        chosen = {seq: number for seq, number in held.items() if seq % 41 in picks}
        change = lease_jobs.unclaim(topic, [*chosen.items(), (10**6, 7)], self.now)
        assert sorted(change.seqs) == sorted(chosen)
        seqs, now = list(chosen), self.now
        self.lease_change(
            topic,
            change,
            lambda model: model.release(seqs, 0, now, uncounted=1),
            self.released_effect(topic, seqs, now.ts, uncounted=1),
        )

    # Calls of lease holders

    def _choose_leases(
        self, name: str, node: str, picks: list[int], tokens: str
    ) -> tuple[Topic, list[int], list[str] | None] | None:
        """Pick seqs that are or were leased, with their current or former tokens."""
        topic = self.topic(name)
        if topic is None:
            return None
        model = self.models[topic.id]
        known = [grant for grant in self.granted if grant.topic_id == topic.id] or [
            Granted(topic.id, seq, node, "lease_1") for seq in (*model.jobs, 1)
        ]
        chosen = [known[-1 - pick % len(known)] for pick in picks]
        seqs = [grant.seq for grant in chosen]
        if tokens == "none":
            return topic, seqs, None
        if tokens == "stale":
            return topic, seqs, [grant.token for grant in chosen]
        jobs = [model.jobs.get(seq) for seq in seqs]
        return topic, seqs, [lease_id(job.number) if job else "lease_0" for job in jobs]

    @rule(name=NAMES, node=NODES, picks=PICKS, tokens=TOKENS)
    def ack(self, name: str, node: str, picks: list[int], tokens: str) -> None:
        chosen_leases = self._choose_leases(name, node, picks, tokens)
        if chosen_leases is None:
            return
        topic, seqs, ids = chosen_leases
        model = self.models[topic.id]
        ours, skipped = model.matched(node, seqs, ids, self.now.ms)
        leases, missed = finish_jobs.begin_ack(topic, node, seqs, ids, self.now)
        change = finish_jobs.ack(topic, leases, self.now)
        assert (list(change.seqs), missed) == (sorted(ours), skipped)
        take_back = self.noted(topic, change, lambda: model.ack(ours))
        self.finish(topic, change, ours, take_back=take_back)

    def finish(
        self,
        topic: Topic,
        change: Change,
        seqs: Sequence[int],
        commit: Callable[[], None] | None = None,
        replay: Callable[[QueueModel], None] | None = None,
        take_back: Callable[[], None] | None = None,
    ) -> None:
        """Delete these jobs when the change is durable."""

        def effect(model: QueueModel) -> None:
            model.delete(seqs)
            if replay is not None:
                replay(model)

        def committed() -> None:
            self.models[topic.id].delete(seqs)
            if commit is not None:
                commit()

        effects: dict[FrameKind, Effect] = {
            FrameKind.DELETE: lambda models: effect(models[topic.id])
        }
        self.submit(change, effects, committed, take_back)

    @rule(
        name=NAMES,
        node=NODES,
        picks=PICKS,
        tokens=TOKENS,
        delay_ms=st.sampled_from([0, 0, 1, 30, 300]),
    )
    def nack(self, name: str, node: str, picks: list[int], tokens: str, delay_ms: int) -> None:
        chosen_leases = self._choose_leases(name, node, picks, tokens)
        if chosen_leases is None:
            return
        topic, seqs, ids = chosen_leases
        now = self.now
        ours, skipped = self.models[topic.id].matched(node, seqs, ids, now.ms)
        change = lease_jobs.nack(topic, node, seqs, ids, delay_ms, now)
        assert (list(change.seqs), list(change.skipped)) == (ours, skipped)
        self.lease_change(
            topic,
            change,
            lambda model: model.release(ours, delay_ms, now),
            self.released_effect(topic, ours, now.ts + delay_ms),
        )

    @rule(name=NAMES, node=NODES, picks=PICKS, tokens=TOKENS, lease_ms=LEASE_MS)
    def extend(self, name: str, node: str, picks: list[int], tokens: str, lease_ms: int) -> None:
        chosen_leases = self._choose_leases(name, node, picks, tokens)
        if chosen_leases is None:
            return
        topic, seqs, ids = chosen_leases
        now = self.now
        ours, skipped = self.models[topic.id].matched(node, seqs, ids, now.ms)
        change = lease_jobs.extend(topic, node, seqs, ids, lease_ms, now)
        assert (list(change.seqs), list(change.skipped)) == (ours, skipped)
        assert change.until_ts == now.ts + lease_ms

        jobs = self.models[topic.id].kept(ours)

        def replay(model: QueueModel) -> None:
            for job in jobs:
                model.apply_frame(
                    [job.seq],
                    state="held",
                    node=node,
                    number=job.number,
                    until_ts=change.until_ts,
                    deliveries=job.deliveries,
                )

        self.lease_change(topic, change, lambda model: model.extend(ours, lease_ms, now), replay)

    @precondition(lambda self: self.streams)
    @rule(which=st.integers(0, 2))
    def close_stream(self, which: int) -> None:
        """Close a stream because its client has disconnected. All its leases are released."""
        stream = self.streams.pop([*self.streams][which % len(self.streams)])
        topic = self.world.engine.by_id.get(stream.topic_id)
        if topic is None:
            return
        self.topic(topic.name)
        model, now = self.models[topic.id], self.now
        model.advance(now.ms)
        seqs = [job.seq for job in model.held() if job.stream == stream.number]
        change = lease_jobs.release(topic, stream.holder, now)
        assert sorted(change.seqs) == seqs
        self.lease_change(
            topic,
            change,
            lambda model: model.release(seqs, 0, now),
            self.released_effect(topic, seqs, now.ts),
        )

"""Checks of queues: lease holders, deliveries, settlements and dead letters."""

from __future__ import annotations

from itertools import pairwise

from tests.simulation.clients import END, LOST
from tests.simulation.judging.base import TICK_S, JudgeBase
from tests.simulation.model import (
    DONE,
    NEVER,
    REFUSED,
    UNKNOWN,
    Delivery,
    Incarnation,
    Known,
    Settle,
    Topic,
    fate_of,
    reachable,
    resolved,
    route_of,
)

# a stream whose client reads nothing for 30 s is closed, and the client may never be notified
SLOW_S = 25.0


class QueueChecks(JudgeBase):
    """Checks leases, deliveries and dead letters."""

    def check_leases(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a job has one lease holder at a time, and that its number of deliveries
        increases and is within its limit.
        """
        for seq, found in incarnation.deliveries.items():
            known = incarnation.records[seq]
            deliveries = sorted(found, key=lambda one: (one.count, one.ended))
            for one in deliveries:
                self.check_delivery(topic, incarnation, known, one)
                limits = topic.may("max_deliveries", one.began, one.ended)
                targets = topic.may("dead_letter", one.began, one.ended)
                if 0 not in limits and None not in targets and one.count > max(limits):
                    sentence = f"job {seq} is delivered {one.count} times, at most {max(limits)}"
                    self.report("queues", topic.name, sentence, one.entry)
            by_time = sorted(found, key=lambda one: (one.ended, one.count))
            for one, other in pairwise(by_time):
                if not self.may_follow(topic, one, other) and not (
                    other.began <= one.ended and self.may_follow(topic, other, one)
                ):
                    sentence = f"job {seq} is leased to {other.node} while {one.node} holds it"
                    self.report("queues", topic.name, sentence, one.entry, other.entry)
                if (
                    one.ended < other.began
                    and other.count <= one.count
                    and not self.may_lose_counts(topic, one.began, other.ended)
                ):
                    sentence = f"delivery {other.count} of job {seq} follows delivery {one.count}"
                    self.report("queues", topic.name, sentence, one.entry, other.entry)

    def check_delivery(
        self, topic: Topic, incarnation: Incarnation, known: Known, one: Delivery
    ) -> None:
        """Check that no job is delivered after its ack or before its time."""
        if known.removed < one.began and not self.model.may_undo(topic, known.remover, one.ended):
            sentence = f"job {known.seq} is delivered after it was acked or deleted"
            self.report("queues", topic.name, sentence, known.remover, one.entry)
        appends = self.model.appends[known.origin[:2]] if known.origin else []
        if known.acked < NEVER and len(appends) == 1 and known.origin is not None:
            delay_ms = appends[0].records[known.origin[2]].get("delay_ms") or 0
            due_at = known.born_at + delay_ms / 1000 - self.model.jumped_s()
            if delay_ms and one.ended_at + TICK_S < due_at:
                sentence = f"job {known.seq} is delivered before its delay of {delay_ms} ms"
                self.report("queues", topic.name, sentence, known.entry, one.entry)
        for settle in topic.settles:
            call, delay_ms = settle.call, settle.what == "nack" and settle.call.body.get("delay_ms")
            if (
                delay_ms
                and known.seq in settle.done
                and call.ended < one.began
                and one.ended_at + TICK_S + self.model.jumped_s() < call.at + delay_ms / 1000
                and not self.may_lose_counts(topic, call.began, one.ended)
                and self.model.epoch_at(topic.name, call.began, call.ended) == incarnation.epoch
            ):
                sentence = f"job {known.seq} is delivered {delay_ms} ms after a nack, or sooner"
                self.report("queues", topic.name, sentence, call.began, one.entry)

    def may_lose_counts(self, topic: Topic, first: int, last: int) -> bool:
        """Return whether delivery counts and delays may be lost between two moments. An orderly
        stop keeps them if the disk accepts the checkpoint.
        """
        if not self.may_lose_leases(topic, first, last):
            return False
        return (
            bool(self.model.jumps)
            or "ephemeral" in topic.may("durability", first, last)
            or any(
                death.what not in ("stop", "start") or death.window_s == NEVER
                for death in self.model.deaths_of(topic, first, last)
            )
        )

    def may_lose_leases(self, topic: Topic, first: int, last: int) -> bool:
        """Return whether leases may be lost between two moments. They are durable from the response
        to the PUT that makes them durable.
        """
        is_logged = topic.may("durability", first, last) <= {"disk", "fsync"}
        deaths = [*self.model.deaths_of(topic, first, last)]
        return any(
            not (
                is_logged
                and death.what in ("kill", "start")
                and topic.may("leases_durable", max(first, death.number), death.until) == {True}
            )
            for death in deaths
        ) or bool(deaths and self.model.jumps)

    def may_follow(self, topic: Topic, one: Delivery, other: Delivery) -> bool:
        """Return whether the lease of ``one`` may have ended when ``other`` gets the job."""
        if self.earliest_expiry(topic, one, other.began, other.ended) <= other.ended_at + TICK_S:
            return True
        if self.may_lose_leases(topic, one.began, other.ended) or self.has_stream_ended(
            one, other.ended
        ):
            return True
        return any(
            settle.what != "extend"
            and one.seq in settle.seqs
            and settle.fate != REFUSED
            and settle.call.began < other.ended
            and settle.until > one.began
            for settle in topic.settles
        )

    def has_stream_ended(self, one: Delivery, last: int) -> bool:
        """Return whether the stream that delivered a job may have ended."""
        if not one.stream:
            return False
        event = self.model.stream_events[one.stream]
        if event[-1].event == END and (event[-1].data == LOST or event[-1].number <= last):
            return True  # the client detects the loss of its stream late
        received_at = max(each.at for each in event if each.number <= last)
        return self.model.at(last) > received_at + SLOW_S or any(
            one.stream < number <= last for number in self.model.front_deaths
        )

    def earliest_expiry(self, topic: Topic, one: Delivery, first: int, last: int) -> float:
        """Return the earliest moment (s) at which the lease may expire."""
        ends = [one.began_at + min(one.lease_ms) / 1000]
        for settle in topic.settles:
            call = settle.call
            if settle.what != "extend" or one.seq not in settle.seqs or call.began >= last:
                continue
            if settle.until < one.began or settle.fate == REFUSED:
                continue
            end = call.at + resolved({"lease_ms": call.body["lease_ms"]})["lease_ms"] / 1000
            is_next = one.ended < call.began and call.ended < first and one.seq in settle.done
            ends = [end] if is_next and settle.node == one.node else [*ends, end]
        return min(ends)

    def latest_expiry(self, topic: Topic, one: Delivery) -> float:
        """Return the latest moment (s) at which the lease may expire, if all extends were
        for it.
        """
        ends = [one.ended_at + max(one.lease_ms) / 1000]
        for settle in topic.settles:
            if settle.what == "extend" and one.seq in settle.seqs and settle.fate != REFUSED:
                call = settle.call
                lease_ms = resolved({"lease_ms": call.body["lease_ms"]})["lease_ms"]
                ends.append(self.model.at(settle.until) + lease_ms / 1000)
        return max(ends) + self.model.jumped_s()

    def check_settles(self, topic: Topic, incarnation: Incarnation) -> None:
        """Check that a lease holder can settle its job and that no other client can."""
        unsure = {call.body["node"] for call in topic.claims if fate_of(call) == UNKNOWN}
        unsure |= topic.unplaced
        unsure |= {
            route_of(call).query.get("node", [""])[0]
            for call in self.model.calls
            if route_of(call).kind == "GET topics/x/work" and route_of(call).name == topic.name
        }
        settles = [one for one in topic.settles if one.fate == DONE and one.node not in unsure]
        for settle in settles:
            call = settle.call
            if self.model.epoch_at(topic.name, call.began, call.ended) != incarnation.epoch:
                continue
            tokens = dict(zip(settle.seqs, settle.lease_ids, strict=False))
            for seq in settle.seqs:
                found = incarnation.deliveries.get(seq, [])
                own = [
                    one
                    for one in found
                    if one.node == settle.node
                    and one.began < call.ended
                    and tokens.get(seq, one.lease_id) == one.lease_id
                ]
                if seq in settle.done:
                    self.check_settled(topic, settle, seq, found, own)
                elif own and found and not unsure:
                    last = max(own, key=lambda one: one.ended)
                    self.check_skipped(topic, incarnation.records[seq], settle, found, last)

    def check_settled(
        self, topic: Topic, settle: Settle, seq: int, found: list[Delivery], own: list[Delivery]
    ) -> None:
        """Check that each settled job was held by the client that settled it."""
        if not own:
            sentence = f"{settle.node} {settle.what}s job {seq}, which it never held by this lease"
            self.report("queues", topic.name, sentence, settle.call.began)
        elif all(self.latest_expiry(topic, one) + TICK_S < settle.call.at for one in own):
            sentence = f"{settle.node} {settle.what}s job {seq}, whose lease has expired"
            self.report("queues", topic.name, sentence, own[-1].entry, settle.call.began)
        latest = max((one.ended for one in own), default=NEVER)
        for other in found:
            is_later = other.node != settle.node and latest < other.began
            if is_later and self.is_held(topic, other, settle):
                sentence = f"{settle.node} {settle.what}s job {seq}, which {other.node} holds"
                self.report("queues", topic.name, sentence, other.entry, settle.call.began)

    def is_held(self, topic: Topic, one: Delivery, settle: Settle) -> bool:
        """Return whether the lease certainly exists during the call."""
        call = settle.call
        return (
            one.ended < call.began
            and self.earliest_expiry(topic, one, call.began, call.ended) > call.ended_at + TICK_S
            and not self.may_lose_leases(topic, one.began, call.ended)
            and not self.has_stream_ended(one, call.ended)
            and not any(
                other is not settle
                and one.seq in other.seqs
                and other.call.began < call.ended
                and other.until > one.began
                for other in topic.settles
            )
        )

    def check_skipped(
        self, topic: Topic, known: Known, settle: Settle, found: list[Delivery], last: Delivery
    ) -> None:
        """Check that a lease holder may settle an existing job. ``last`` is the latest delivery to
        the node.
        """
        call = settle.call
        is_latest = all(one is last or one.ended < last.began for one in found)
        may_continue = any(topic.ever(name) for name in ("cap_records", "cap_bytes", "ttl_ms"))
        may_continue |= any(one.call.began < call.ended for one in topic.redrives)
        if (
            is_latest
            and not may_continue
            and known.removable_from > call.ended
            and self.is_held(topic, last, settle)
            and not self.model.may_lose(topic, known, call.ended)
        ):
            sentence = f"{settle.node} holds job {known.seq}, but its {settle.what} is skipped"
            self.report("queues", topic.name, sentence, last.entry, call.began)

    def check_dead_letters(self) -> None:
        """Check that a dead letter is stored once and that its job is stored nowhere else."""
        for topic in self.model.topics.values():
            may_have_copies = self.may_lose_copies(topic) or self.is_in_cycle(topic)
            for incarnation in topic.epochs.values():
                moved: dict[tuple[str, int], Known] = {}
                for known in incarnation.records.values():
                    meta = known.record.get("meta") or {}
                    name, seq = (
                        meta.get("$dead_letter_from", ""),
                        meta.get("$dead_letter_src_seq", 0),
                    )
                    queue = self.model.topics.get(name)
                    if not seq:
                        continue  # a client appended it
                    if queue is None or len(queue.epochs) != 1 or queue.deletes:
                        continue
                    if topic.name not in queue.may("dead_letter"):
                        continue  # a copy of a dead letter
                    other = moved.setdefault((name, seq), known)
                    if other is not known and not may_have_copies:
                        sentence = f"job {seq} of {name} is a dead letter at {other.seq}"
                        sentence += f" and {known.seq}"
                        self.report("once", topic.name, sentence, other.entry, known.entry)
                    (source,) = queue.epochs.values()
                    self.check_dead_letter(topic, queue, source, known, seq)

    def is_in_cycle(self, topic: Topic) -> bool:
        """Return whether copies that routers make of the topic's records may return to it."""
        dests = {
            one.dest
            for writes in self.model.routers.values()
            for one in writes
            if one.source == topic.name
        }
        return topic.name in reachable(self.ways, dests)

    def check_dead_letter(
        self, topic: Topic, queue: Topic, source: Incarnation, dead: Known, seq: int
    ) -> None:
        job = source.records.get(seq)
        if job is not None and job.origin and dead.origin and job.origin != dead.origin:
            sentence = f"dead letter {dead.seq} is not job {seq} of {queue.name}"
            self.report("stable", topic.name, sentence, job.entry, dead.entry)
        settings = queue.settings["max_deliveries"], queue.settings["dead_letter"]
        if any(len(one.writes) > 2 for one in settings) or self.may_lose_copies(queue):
            return  # a change of the config makes jobs claimable that are being moved
        for one in source.deliveries.get(seq, ()):
            if dead.seen < one.began:
                sentence = f"job {seq} is delivered, although it is a dead letter in {topic.name}"
                self.report("queues", queue.name, sentence, dead.entry, one.entry)

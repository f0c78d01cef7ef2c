"""What workers of queues were told of leases, held against the contract: pure.

A lease is certainly live from the moment when its worker heard of it up to its deadline, or up to
the first moment at which something may have ended it: an ack or nack was sent, its stream was
closed, the front of its stream or the shard of a queue with ``leases_durable`` false was killed. It
is certainly over after its deadline, after the answer of the ack or nack that took it, and once
somebody heard of a later delivery. What is neither is not judged.

    two leases      no two are certainly live at one time
    stale           no ack, nack or extend takes a job by a lease that is certainly over
    held            none skips a job whose lease is certainly live
    deliveries      no two have the same number; none is above ``max_deliveries``; none comes before
                    a delay is over or after an ack was answered; none shows other data
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from tests.campaigns.killer import EVERYTHING
from tests.campaigns.worker_history import Death, Delivery, History, Request

SLACK_NS = 5_000_000  # both clocks of the server count whole milliseconds
GONE_NS = 200_000_000  # a process answers nothing any more so long after SIGKILL
NEVER = 1 << 63


@dataclass(slots=True)
class Verdict:
    """``counts`` says how much was judged: a check that met nothing proves nothing."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Walk:
    """One lease, request by request. ``over``: certainly, from that moment on, and why."""

    delivery: Delivery
    sure: int  # its deadline, if nothing else ends it
    late: int | None  # the latest that its deadline may be; None: unknown
    end: int = NEVER  # something may have ended it from here on
    over: tuple[int, str] | None = None

    @property
    def until(self) -> int:
        return min(self.sure, self.end)

    def end_at(self, moment: int) -> None:
        self.end = min(self.end, moment)

    def over_at(self, moment: int, why: str) -> None:
        if self.over is None or moment < self.over[0]:
            self.over = moment, why

    def stale(self, moment: int) -> str | None:
        """Why it is certainly over at ``moment``; None when it may be live."""
        if self.over is not None and moment > self.over[0]:
            return self.over[1]
        return "expired" if self.late is not None and moment > self.late else None

    def is_live(self, since: int, to: int) -> bool:
        """Whether it is certainly live all the time."""
        return self.delivery.at <= since and to < self.until

    def apply(self, request: Request, *, exact: bool) -> None:
        """What the request did, or may have done. ``exact``: it can have met no other lease."""
        seq = self.delivery.seq
        if seq in request.skipped:
            return
        if request.do != "extend":
            self.end_at(request.sent)
            if request.at is not None and exact:
                self.over_at(request.at, "released")
        elif request.at is None:
            self.sure = min(self.sure, request.sent + request.ms * 1_000_000 - SLACK_NS)
            self.late = None
        else:
            deadline = request.deadlines[seq]
            self.sure = deadline - SLACK_NS if exact else min(self.sure, deadline - SLACK_NS)
            if self.late is not None:
                self.late = deadline + SLACK_NS if exact else max(self.late, deadline + SLACK_NS)


class Leases:
    """All deliveries of all jobs."""

    def __init__(self, history: History, verdict: Verdict) -> None:
        self._history, self._problems, self._counts = history, verdict.problems, verdict.counts
        self._asked: dict[tuple[str, int], list[Request]] = {}
        for request in sorted(history.requests, key=lambda request: request.sent):
            for seq in request.seqs:
                self._asked.setdefault((request.queue, seq), []).append(request)
        # Nodes that may hold leases which they were never told of, from what moment on.
        self._murky: dict[tuple[str, str], int] = {}
        for opening in history.openings.values():
            if opening.stream or not opening.answered:
                key = opening.node, opening.queue
                self._murky[key] = min(opening.sent, self._murky.get(key, opening.sent))

    def judge(self) -> None:
        tokens = Counter(each.token for all_ in self._history.deliveries.values() for each in all_)
        self._problems += [f"{token} was given {n} times" for token, n in tokens.items() if n > 1]
        for key in {*self._history.deliveries} | {*self._asked}:
            self._one_job(*key)

    def _one_job(self, queue: str, seq: int) -> None:
        deliveries = sorted(self._history.deliveries.get((queue, seq), []), key=lambda d: d.at)
        self._counts["deliveries"] += len(deliveries)
        self._counts["deliveries again"] += max(len(deliveries) - 1, 0)
        walks = [self._begin(delivery, deliveries) for delivery in deliveries]
        for request in self._asked.get((queue, seq), []):
            self._meet(request, seq, walks)
        for walk in walks:
            walk.delivery.until = walk.until
        self._problems += self._two_leases(deliveries)
        self._problems += self._wrong_numbers(queue, seq, deliveries)
        self._problems += self._wrong_times(queue, seq, deliveries)

    def _begin(self, delivery: Delivery, others: list[Delivery]) -> Walk:
        """A lease before anything was asked of it."""
        deadline = delivery.deadline
        walk = Walk(delivery, deadline - SLACK_NS, deadline + SLACK_NS)
        rules = self._history.queues[delivery.queue]
        for death in self._history.deaths:
            of_shard = death.role in (EVERYTHING, f"shard {rules.shard}")
            of_front = death.role == EVERYTHING or death.role.startswith("front")
            if death.after < delivery.sent:
                continue
            if of_shard and not rules.leases_durable:
                walk.end_at(death.before)
                if death.before > delivery.at:
                    walk.over_at(death.after + GONE_NS, "restart")
            if delivery.stream is not None and (of_shard or of_front):
                walk.end_at(death.before)
        if delivery.stream is not None:
            ended = self._history.openings[delivery.stream].ended
            if ended is not None:
                walk.end_at(ended)
        for other in others:
            if self._is_later(other, delivery):
                walk.over_at(other.at, "superseded")
        return walk

    def _meet(self, request: Request, seq: int, walks: list[Walk]) -> None:
        """One request for one job: judge its answer, then let it take effect."""
        token = request.tokens[request.seqs.index(seq)] if request.tokens is not None else None
        met = [
            walk
            for walk in walks
            if walk.delivery.node == request.node and token in (None, walk.delivery.token)
        ]
        if request.at is not None:
            self._judge_answer(request, request.at, seq, token, met)
        exact = token is not None or len(met) == 1
        for walk in met:
            walk.apply(request, exact=exact)

    def _judge_answer(
        self, request: Request, at: int, seq: int, token: str | None, met: list[Walk]
    ) -> None:
        what = f"{request.do} of {request.queue} {seq} by {request.node}"
        is_taken = seq not in request.skipped
        reasons = [walk.stale(request.sent) for walk in met]
        murky = self._murky.get((request.node, request.queue))
        is_known = token is not None or murky is None or murky > at
        if is_known and None not in reasons:
            why = str(reasons[-1]) if reasons else "never held"
            self._counts[f"stale: {why if token else 'no token'}"] += 1
            if is_taken:
                self._problems.append(f"{what} takes a lease that is over: {why} {token or ''}")
        elif any(walk.is_live(request.sent, at) for walk in met):
            self._counts["live"] += 1
            if not is_taken:
                self._problems.append(f"{what} skips a job that is held {token or ''}")

    def _two_leases(self, deliveries: list[Delivery]) -> Iterator[str]:
        for one, other in combinations(deliveries, 2):
            both = min(one.until, other.until) - max(one.at, other.at)
            if both > 0:
                yield (
                    f"{one.queue} {one.seq} is held twice for {both / 1e6:.1f} ms:"
                    f" {one.token} of {one.node}, {other.token} of {other.node}"
                )

    def _wrong_numbers(self, queue: str, seq: int, deliveries: list[Delivery]) -> Iterator[str]:
        rules = self._history.queues[queue]
        seen: dict[tuple[int, int], Delivery] = {}
        for delivery in deliveries:
            if rules.dead_letter and delivery.deliveries > rules.max_deliveries > 0:
                yield f"{queue} {seq} is delivered for the {delivery.deliveries}th time"
            life = self._life(delivery)
            if life is None:
                continue
            first = seen.setdefault((life, delivery.deliveries), delivery)
            if first is not delivery:
                both = f"{first.token} and {delivery.token}"
                yield f"{queue} {seq}: {both} are both delivery {delivery.deliveries}"

    def _wrong_times(self, queue: str, seq: int, deliveries: list[Delivery]) -> Iterator[str]:
        job = self._history.jobs.get((queue, seq))
        for delivery in deliveries:
            if job is None:
                yield f"{queue} {seq} is delivered, nobody appended it: {delivery.data}"
            elif job.data != delivery.data:
                yield f"{queue} {seq} is delivered as {delivery.data}, it was {job.data}"
            elif delivery.at < job.due - SLACK_NS:
                yield f"{queue} {seq} comes {(job.due - delivery.at) / 1e6:.0f} ms before its time"
        for request in self._asked.get((queue, seq), []):
            if request.at is None or seq in request.skipped or request.do == "extend":
                continue
            for delivery in deliveries:
                if wrong := self._too_early(request, request.at, seq, delivery, deliveries):
                    yield wrong

    def _too_early(
        self, request: Request, at: int, seq: int, delivery: Delivery, all_: list[Delivery]
    ) -> str | None:
        """What is wrong with a delivery that comes after an ack or nack that was taken."""
        met = [
            each
            for each in all_
            if each.node == request.node
            and (request.tokens is None or request.tokens[request.seqs.index(seq)] == each.token)
        ]
        is_after = delivery.sent > at or any(self._is_later(delivery, each) for each in met[:1])
        if len(met) != 1 or not is_after:
            return None
        if request.do == "ack":
            return f"{request.queue} {seq} is delivered as {delivery.token} after its ack"
        early = request.sent + request.ms * 1_000_000 - SLACK_NS - delivery.at
        if early > 0 and not self._forgot(request.queue, request.sent, delivery.at):
            return f"{request.queue} {seq} comes {early / 1e6:.0f} ms before its nack's delay"
        return None

    def _forgot(self, queue: str, since: int, to: int) -> bool:
        """Whether the queue may have lost its leases in between."""
        rules = self._history.queues[queue]
        return not rules.leases_durable and any(
            death.before < to and death.after > since for death in self._shard_deaths(queue)
        )

    def _is_later(self, one: Delivery, other: Delivery) -> bool:
        """Whether ``one`` was certainly decided after ``other``."""
        if one.sent > other.at:
            return True
        lives = self._life(one), self._life(other)
        if None in lives or one is other:
            return False
        return (lives[0], one.deliveries) > (lives[1], other.deliveries)

    def _life(self, delivery: Delivery) -> int | None:
        """Which of the lives of its shard, as far as it knows of leases, a delivery belongs to;
        None: unknown.
        """
        if self._history.queues[delivery.queue].leases_durable:
            return 0
        known = delivery.at
        if delivery.stream is not None:
            live = self._history.openings[delivery.stream].live
            if live is None:
                return None
            known = live
        life = 0
        for death in self._shard_deaths(delivery.queue):
            if death.after + GONE_NS < delivery.sent:
                life += 1
            elif death.before < known:
                return None
        return life

    def _shard_deaths(self, queue: str) -> Iterator[Death]:
        role = f"shard {self._history.queues[queue].shard}"
        return (death for death in self._history.deaths if death.role in (EVERYTHING, role))

"""Records of a topic: append (§2) and delete (§5). The diff is in `topics.front.data.read_ahead`.

    POST   /v0/topics/:topic          ?return_seqs    §2
    POST   /v0/topics/:topic/delete                   §5

Appends to one topic that arrive in one iteration of the front's loop are sent as one message:

    append --in one iteration--> group of its topic --end, or group is full--> message --> shard
                                                 one reply --> a response to each request, in order

Requests join a group if their bodies are in memory and short, they have no idempotency key, and
their clients use the same API key. The shard processes each request separately. A group that
consists of one request is sent in the same form as a request that cannot join a group.

An iteration of the loop corresponds to an open batch (`topics.actors.shard_client.shards`).
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import msgspec
import structlog

from topics.actors.rpc.replies import failures_of
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Principal, Scope
from topics.engine.priority import NEW_BAND
from topics.errors import Internal, TopicsError
from topics.formats.wire.calls import (
    APPEND,
    DELETE_RECORDS,
    AppendOutcome,
    AppendParams,
    AppendResult,
    TopicParams,
    band_in,
    outcome_in,
)
from topics.front.answers import Answer, location, shard_answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult, Operation, PendingResult
from topics.front.pressure.pressure import Pressure, delay_refusal
from topics.front.queries import EMPTY, Parameter, boolean
from topics.front.request import Body, Request
from topics.front.route import BodyRule, Route

log = structlog.get_logger()

# Maximum number of requests in the first message of an iteration. It is small, so that the shard
# starts while the front reads more requests.
JOINED_FIRST_MAX = 8
JOINED_MAX = 32  # maximum number of requests in each later message of an iteration
JOINED_MAX_BYTES = 16 * 1024  # total length of the bodies in a group of several requests

Key: TypeAlias = tuple[str, bool, Principal]

CREATED, FAILED = AppendOutcome.CREATED, AppendOutcome.FAILED
DECODED = [(outcome_in(byte), band_in(byte)) for byte in range(256)]
RETURN_SEQS = Parameter("return_seqs", boolean, default=True)


class AppendGroup(msgspec.Struct, eq=False):
    """Requests that are sent together.

    ``request`` is the first request, and ``length`` is the total length of all bodies.
    """

    request: Request
    with_seqs: bool
    bodies: list[Body]
    ats: list[int]
    thens: list[OnResult]
    length: int
    parked_ms: float


class AppendGroups:
    """The appends from all connections to a front."""

    def __init__(self, shards: Shards, pressure: Pressure) -> None:
        self._shards, self._batch = shards, shards.batch
        self._pressure, self._bands = pressure, pressure.bands
        pressure.scheduler.batch = shards.batch
        # Empty whenever no batch is open, because `_end_iteration` sends all groups.
        self._groups: dict[Key, AppendGroup] = {}
        self._sent_early: set[Key] = set()  # groups with a message that was sent in this iteration

    def append(self, request: Request, body: Body, at: int, then: OnResult) -> PendingResult:
        """Append records (§2). The shard decodes the body. Raise `Throttled` under pressure."""
        pressure = self._pressure
        if not pressure.is_unthrottled:
            # Under pressure, refuse before the body is sent to the shard.
            refusal = pressure.refusal_of(request, body)
            if refusal is not None:
                return delay_refusal(refusal)
        # If all topics are in one band, no append has priority over another.
        if self._bands.known or pressure.scheduler.waiting:
            band = self._bands.of(request.topic)
            if not pressure.scheduler.may_continue(band):
                pressure.scheduler.park(band, partial(self._join, request, body, at, then))
                return None
        self._join(request, body, at, then)
        return None

    def _join(
        self, request: Request, body: Body, at: int, then: OnResult, parked_ms: float = 0.0
    ) -> None:
        """Add the request to the group of its topic, or send it alone if it cannot join.

        ``parked_ms`` is the time for which the request was parked. A group reports the time of its
        first request.
        """
        query = request.query
        with_seqs = query is EMPTY or query[RETURN_SEQS]
        # Only short bodies without an idempotency key can join a group, and only while a batch is
        # open.
        if not self._batch.is_open or type(body) is not bytes or request.key is not None:
            self._send(AppendGroup(request, with_seqs, [body], [at], [then], 0, parked_ms))
            return
        key = request.topic, with_seqs, request.principal
        group = self._groups.get(key)
        if group is None:
            group = AppendGroup(request, with_seqs, [body], [at], [then], len(body), parked_ms)
            self._groups[key] = group
            self._batch.at_end = self._end_iteration
        else:
            group.bodies.append(body)
            group.ats.append(at)
            group.thens.append(then)
            group.length += len(body)
        # The first message is short, so that the shard begins early. Later ones may be longer.
        most = JOINED_MAX if key in self._sent_early else JOINED_FIRST_MAX
        if group.length > JOINED_MAX_BYTES or len(group.thens) == most:
            # The group is full: send it while the front reads more requests.
            del self._groups[key]
            self._sent_early.add(key)
            self._send(group, early=True)

    def _end_iteration(self) -> None:
        """Send the remaining groups at the end of an iteration."""
        self._batch.at_end = None
        self._sent_early.clear()
        while self._groups:  # a client whose request fails immediately may append again
            groups, self._groups = self._groups, {}
            for group in groups.values():
                self._send(group)

    def _send(self, group: AppendGroup, *, early: bool = False) -> None:
        """Send a group as one message."""
        request, bodies, ats = group.request, group.bodies, group.ats
        principal, shard, is_one = request.principal, request.shard, len(bodies) == 1
        params = AppendParams(
            request.topic,
            request.key,
            group.with_seqs,
            None if principal.prefixes is None else [*principal.prefixes],
            ats[0],
            # A single request needs no lengths, and its body is sent without a copy.
            None if is_one else [len(body) for body in bodies],  # type: ignore[arg-type]
            group.parked_ms,
            principal.is_admin,
            None if is_one else ats,
        )
        body = bodies[0] if is_one else b"".join(bodies)  # type: ignore[arg-type]
        answered = partial(self._answered_single if is_one else self._answered, group)
        try:
            self._shards.call(shard, APPEND, params, body, answered, early=early)
        except Exception:
            log.exception("request failed", route="append")
            answered(Internal("internal error"))

    def _answered_single(
        self, group: AppendGroup, reply: Reply[AppendResult] | TopicsError
    ) -> None:
        """Respond to the only request of a group, without copying the body of the reply."""
        then = group.thens[0]
        if isinstance(reply, TopicsError):
            then(reply)
            return
        outcome, band = DECODED[reply.result.outcomes[0]]
        topic = group.request.topic
        # The reply contains the band, so that the front knows the priority of the topic.
        if self._bands.known.get(topic, NEW_BAND) != band:
            self._bands.store(topic, band)
        if outcome == FAILED:
            reply.release()
            then(failures_of(reply.result)[0])
        else:
            made = location("topics", topic) if outcome == CREATED else ()
            then(shard_answer(reply, made=made))

    def _answered(self, group: AppendGroup, reply: Reply[AppendResult] | TopicsError) -> None:
        """Respond to each request of a group."""
        if isinstance(reply, TopicsError):
            answers: list[Answer | TopicsError] = [reply] * len(group.thens)
        else:
            answers = self._answers(group.request.topic, reply)
        for then, answer in zip(group.thens, answers, strict=True):
            try:
                then(answer)
            except Exception:  # an error of one connection; the others still get their responses
                log.exception("request failed", route="append")

    def _answers(self, topic: str, reply: Reply[AppendResult]) -> list[Answer | TopicsError]:
        """Return the responses to the requests of a group, in order."""
        result, bodies = reply.result, bytes(reply.body)
        reply.release()
        assert result.lengths is not None, "a group has several requests"
        # The last outcome has the newest band of the topic.
        self._bands.store(topic, band_in(result.outcomes[-1]))
        failures = iter(failures_of(result) if result.failures else ())
        answers: list[Answer | TopicsError] = []
        end = 0
        for byte, length in zip(result.outcomes, result.lengths, strict=True):
            outcome, _ = DECODED[byte]
            if outcome == FAILED:
                answers.append(next(failures))
            else:
                start, end = end, end + length
                made = location("topics", topic) if outcome == CREATED else ()
                answers.append(Answer(201 if made else 200, bodies[start:end], headers=made))
        return answers


def delete(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Delete records (§5)."""
    params = TopicParams(request.topic, at)
    return context.call(request, DELETE_RECORDS, params, body, then)


APPEND_ROUTE = Route(
    "POST",
    "/v0/topics/:topic",
    "append",
    Scope.WRITE,
    body=BodyRule.REQUIRED,
    parameters=(RETURN_SEQS,),
    long_body=True,
)
ROUTES: dict[Route, Operation] = {
    Route(
        "POST",
        "/v0/topics/:topic/delete",
        "topic.delete_records",
        Scope.DELETE,
        body=BodyRule.REQUIRED,
        is_audited=True,
    ): delete,
}

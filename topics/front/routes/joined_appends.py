"""Joined appends: what clients append to one topic within a turn of the front is one message.

    append --within a turn--> group of its topic --end of the turn, or full--> message --> shard
                              one answer --> the answer to each request, in their order

Requests join whose bodies are in memory and short, without a key, of clients with one API key. The
shard decides each request for itself. A request that is alone in its turn is the message that it
would be anyway.

A turn is an open batch (`topics.actors.shard_client.shards`): a pass of the poller, or of a link.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TypeAlias

from topics.actors.rpc.replies import failures_of
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Principal, Scope
from topics.errors import Internal, TopicsError
from topics.formats.wire.calls import (
    APPEND,
    AppendOutcome,
    AppendParams,
    AppendResult,
    band_in,
    outcome_in,
)
from topics.front.answers import Answer
from topics.front.dispatch import Then
from topics.front.pressure.pressure import Bands
from topics.front.request import Body, Request

LOG = logging.getLogger("topics.front")

JOINED_FIRST = 8  # requests of a turn's first message: the shard begins while the front reads on
JOINED_MAX = 32  # of those that follow
JOINED_MAX_BYTES = 16 * 1024  # of their bodies, or one request

Key: TypeAlias = tuple[str, bool, Principal]

CREATED, FAILED = AppendOutcome.CREATED, AppendOutcome.FAILED
DECODED = [(outcome_in(byte), band_in(byte)) for byte in range(256)]


class Group:
    """Requests that travel together. ``request``: the first of them."""

    __slots__ = ("ats", "bodies", "length", "request", "thens", "with_seqs")

    def __init__(self, request: Request, with_seqs: bool) -> None:
        self.request, self.with_seqs = request, with_seqs
        self.bodies: list[Body] = []
        self.ats: list[int] = []
        self.thens: list[Then] = []
        self.length = 0  # of the bodies


class Appends:
    """All appends of a front."""

    def __init__(self, shards: Shards, bands: Bands) -> None:
        self._shards, self._bands, self._batch = shards, bands, shards.batch
        self._groups: dict[Key, Group] = {}
        self._begun: set[Key] = set()  # sent within this turn

    def _end_turn(self) -> None:
        self._batch.at_end = None
        self._begun.clear()
        while self._groups:  # who is refused at once may append again
            groups, self._groups = self._groups, {}
            for group in groups.values():
                self._send(group)

    def append(
        self,
        request: Request,
        body: Body,
        at: int,
        with_seqs: bool,
        parked_ms: float,
        then: Then,
    ) -> None:
        """Ask for an append; takes over ``body``. ``then`` is called with the answer, or with the
        failure; perhaps before this returns.
        """
        if self._batch.is_open and type(body) is bytes and request.key is None and not parked_ms:
            key = request.topic, with_seqs, request.principal
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group(request, with_seqs)
                self._batch.at_end = self._end_turn
            group.bodies.append(body)
            group.ats.append(at)
            group.thens.append(then)
            group.length += len(body)
            most = JOINED_MAX if key in self._begun else JOINED_FIRST
            if group.length > JOINED_MAX_BYTES or len(group.thens) == most:
                del self._groups[key]
                self._begun.add(key)
                self._send(group, early=True)
        else:
            group = Group(request, with_seqs)
            group.bodies, group.ats, group.thens = [body], [at], [then]
            self._send(group, parked_ms=parked_ms)

    def _send(self, group: Group, *, parked_ms: float = 0.0, early: bool = False) -> None:
        request, bodies, ats = group.request, group.bodies, group.ats
        principal, shard, is_one = request.principal, request.shard, len(bodies) == 1
        params = AppendParams(
            request.topic,
            request.key,
            group.with_seqs,
            None if principal.prefixes is None else [*principal.prefixes],
            ats[0],
            None if is_one else [len(body) for body in bodies],  # type: ignore[arg-type]
            parked_ms,
            principal.allows(Scope.ADMIN),
            None if is_one else ats,
        )
        body = bodies[0] if is_one else b"".join(bodies)  # type: ignore[arg-type]
        answered = partial(self._answered_one if is_one else self._answered, group)
        try:
            self._shards.call(shard, APPEND, params, body, answered, early=early)
        except Exception:
            LOG.exception("unexpected server error: append")
            answered(Internal("internal error"))

    def _answered_one(self, group: Group, reply: Reply[AppendResult] | TopicsError) -> None:
        if isinstance(reply, TopicsError):
            group.thens[0](reply)
            return
        outcome, band = DECODED[reply.result.outcomes[0]]
        self._bands.learn(group.request.topic, band)
        if outcome == FAILED:
            reply.release()
            group.thens[0](failures_of(reply.result)[0])
        else:
            group.thens[0](Answer(201 if outcome == CREATED else 200, reply.body, reply))

    def _answered(self, group: Group, reply: Reply[AppendResult] | TopicsError) -> None:
        """Answer each request of a group."""
        if isinstance(reply, TopicsError):
            answers: list[Answer | TopicsError] = [reply] * len(group.thens)
        else:
            answers = self._answers(group.request.topic, reply)
        for then, answer in zip(group.thens, answers, strict=True):
            try:
                then(answer)
            except Exception:  # of one connection: the others have their answers
                LOG.exception("unexpected server error: append")

    def _answers(self, topic: str, reply: Reply[AppendResult]) -> list[Answer | TopicsError]:
        result, bodies = reply.result, bytes(reply.body)
        reply.release()
        assert result.lengths is not None, "a group has several requests"
        self._bands.learn(topic, band_in(result.outcomes[-1]))
        failures = iter(failures_of(result) if result.failures else ())
        answers: list[Answer | TopicsError] = []
        end = 0
        for byte, length in zip(result.outcomes, result.lengths, strict=True):
            outcome, _ = DECODED[byte]
            if outcome == FAILED:
                answers.append(next(failures))
            else:
                start, end = end, end + length
                answers.append(Answer(201 if outcome == CREATED else 200, bodies[start:end]))
        return answers

"""Joined appends: what clients append to one topic within a turn of the front is one message.

    append --within a turn--> group of its topic --end of the turn, or full--> message --> shard
                              one answer --> the answer to each request, in their order

Requests join whose bodies are in memory and short, without a key, of clients with equal rights. The
shard decides each request for itself. A request that is alone in its turn is the message that it
would be anyway.

The requests that come next on connections which a group's answer has answered are a turn, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import trio

from topics.actors.rpc.failures import failures_of
from topics.actors.rpc.stepping import NOW, Command, Driver, command
from topics.engine.access import Scope
from topics.errors import Internal, TopicsError
from topics.formats.wire.calls import (
    APPEND,
    AppendOutcome,
    AppendParams,
    AppendResult,
    band_in,
    outcome_in,
)
from topics.front.answers import Answer, shard_answer
from topics.front.backend import Backend, Body, Reply, listed
from topics.front.pressure.bands import Bands
from topics.front.request import Request

LOG = logging.getLogger("topics.front")

JOINED_MAX = 8  # requests of a message: the shard decides them while the front reads the next
JOINED_MAX_BYTES = 16 * 1024  # of their bodies, or one request

Then: TypeAlias = Callable[[Answer | TopicsError], None]
Key: TypeAlias = tuple[str, bool, tuple[str, ...] | None, bool]

CREATED, FAILED = AppendOutcome.CREATED, AppendOutcome.FAILED


class Group:
    """Requests that travel together."""

    __slots__ = ("ats", "bodies", "length", "shard", "thens")

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.length = 0  # of the bodies
        self.bodies: list[bytes] = []
        self.ats: list[int] = []
        self.thens: list[Then] = []


class Appends:
    """All appends of a front. It is its turn, too: a context manager around what never waits.
    ``batch``: `Backend.batch`, which is open meanwhile.
    """

    def __init__(self, backend: Backend, bands: Bands) -> None:
        self._backend, self._bands = backend, bands
        self._batch: AbstractContextManager[None] = backend.batch
        self._groups: dict[Key, Group] = {}
        self._is_turn = False

    def __enter__(self) -> None:
        self._batch.__enter__()
        self._is_turn = True

    def __exit__(self, *_: object) -> None:
        try:
            self._end_turn()
        finally:
            self._batch.__exit__(None, None, None)

    def _end_turn(self) -> None:
        while self._groups:
            groups, self._groups = self._groups, {}
            for key, group in groups.items():
                self._send(key, group)
        self._is_turn = False

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
        principal = request.principal
        key = request.topic, with_seqs, principal.prefixes, principal.allows(Scope.ADMIN)
        if not self._is_turn or type(body) is not bytes or request.key is not None or parked_ms:
            self._ask(request.shard, key, request.key, body, at, then, parked_ms)
            return
        group, length = self._groups.get(key), len(body)
        if group is None:
            group = self._groups[key] = Group(request.shard)
        group.length += length
        group.bodies.append(body)
        group.ats.append(at)
        group.thens.append(then)
        if group.length > JOINED_MAX_BYTES or len(group.thens) == JOINED_MAX:
            del self._groups[key]
            self._send(key, group)
            self._batch.__exit__(None, None, None)  # the shard begins while the turn goes on
            self._batch.__enter__()

    def _send(self, key: Key, group: Group) -> None:
        bodies = group.bodies
        if len(bodies) == 1:
            self._ask(group.shard, key, None, bodies[0], group.ats[0], group.thens[0])
            return
        topic, with_seqs, prefixes, may_configure = key
        params = AppendParams(
            topic,
            None,
            with_seqs,
            listed(prefixes),
            group.ats[0],
            [len(body) for body in bodies],
            may_configure=may_configure,
            ats=group.ats,
        )

        def answered(reply: Reply[AppendResult] | TopicsError) -> None:
            self._answered(topic, group, reply)

        self._send_message(group.shard, params, b"".join(bodies), answered)

    def _answered(self, topic: str, group: Group, reply: Reply[AppendResult] | TopicsError) -> None:
        """Answer each request of a group."""
        is_outermost, self._is_turn = not self._is_turn, True
        if isinstance(reply, TopicsError):
            answers: list[Answer | TopicsError] = [reply] * len(group.thens)
        else:
            answers = self._answers(topic, reply)
        for then, answer in zip(group.thens, answers, strict=True):
            then(answer)
        if is_outermost:
            self._end_turn()

    def _answers(self, topic: str, reply: Reply[AppendResult]) -> list[Answer | TopicsError]:
        result, bodies = reply.result, bytes(reply.body)
        reply.release()
        assert result.lengths is not None, "a group has several requests"
        self._bands.learn(topic, band_in(result.outcomes[-1]))
        failures = iter(failures_of(result) if result.failures else ())
        answers: list[Answer | TopicsError] = []
        end = 0
        for byte, length in zip(result.outcomes, result.lengths, strict=True):
            outcome = outcome_in(byte)
            if outcome == FAILED:
                answers.append(next(failures))
            else:
                start, end = end, end + length
                answers.append(Answer(201 if outcome == CREATED else 200, bodies[start:end]))
        return answers

    def _ask(
        self,
        shard: int,
        key: Key,
        idempotency_key: str | None,
        body: Body,
        at: int,
        then: Then,
        parked_ms: float = 0.0,
    ) -> None:
        """Ask for one append."""
        topic, with_seqs, prefixes, may_configure = key
        params = AppendParams(
            *(topic, idempotency_key, with_seqs, listed(prefixes), at, None, parked_ms),
            may_configure,
        )

        def answered(reply: Reply[AppendResult] | TopicsError) -> None:
            if isinstance(reply, TopicsError):
                then(reply)
                return
            byte = reply.result.outcomes[0]
            self._bands.learn(topic, band_in(byte))
            outcome = outcome_in(byte)
            if outcome == FAILED:
                reply.release()
                then(failures_of(reply.result)[0])
            else:
                then(shard_answer(reply, created=outcome == CREATED))

        self._send_message(shard, params, body, answered)

    def _send_message(
        self,
        shard: int,
        params: AppendParams,
        body: Body,
        answered: Callable[[Reply[AppendResult] | TopicsError], None],
    ) -> None:
        try:
            self._backend.ask(shard, APPEND, params, body, answered)
        except Exception:
            LOG.exception("unexpected server error: append")
            answered(Internal("internal error"))
        self._backend.flush(shard)


async def answered(ask: Callable[[Then], None]) -> Answer:
    """The answer that ``ask`` leads to. Raises the failure."""
    waiter = _Waiter(NOW.driver)
    ask(waiter.take)
    answer = await waiter.wait()
    if isinstance(answer, TopicsError):
        raise answer
    return answer


class _Waiter:
    """A coroutine that waits for its answer, stepped or in a task."""

    def __init__(self, driver: Driver | None) -> None:
        self._driver = driver
        self._answer: Answer | TopicsError | None = None
        self._wake: Callable[[Answer | TopicsError], None] = self._keep

    def _keep(self, answer: Answer | TopicsError) -> None:
        self._answer = answer

    def take(self, answer: Answer | TopicsError) -> None:
        """The answer has come."""
        self._wake(answer)

    async def wait(self) -> Answer | TopicsError:
        """The answer."""
        if self._answer is not None:
            return self._answer
        driver = self._driver
        try:
            if driver is None:
                came = trio.Event()

                def wake(answer: Answer | TopicsError) -> None:
                    self._answer = answer
                    came.set()

                self._wake = wake
                await came.wait()
                assert self._answer is not None, "it came"
                return self._answer
            self._wake = driver.answered
            answer: Answer | TopicsError = await command(Command.ANSWER)
        except BaseException:  # nobody waits any more
            self._wake = _drop
            if self._answer is not None:
                _drop(self._answer)
            raise
        return answer


def _drop(answer: Answer | TopicsError) -> None:
    if isinstance(answer, Answer):
        answer.done()

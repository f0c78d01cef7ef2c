"""Message router: dispatches messages to handlers (ADR 011). ``decisions/0003-message-router.md``
says how the ADR reads in Python, and why.

    message -> policy: reserved 1003, not allowed 1002
            -> rpc     request: 1002 malformed, 1101 no handler, 2000 handler raised,
                       1103 no answer in time
                       answer: wakes the call that waits for it
               event   not a notification: logged, dropped; a handler that raises: logged, the
                       next one runs
               custom  the payload is opaque; a handler that raises: logged, the next one runs

Handlers of one message run in order, each after the one before has finished: exact matches, then
prefixes, longer ones first; among equals the session's handlers before the global ones, then in
registration order; up to and with the first exclusive handler.

The router is general: it knows no subject of this program. `topics.actors.rpc.typed_calls` puts the
calls table on top of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import structlog
import trio

from topics.actors.rpc.inbound import InboundMessage, PeerSession, RpcContext
from topics.actors.rpc.route_table import Plan, Registration, RouteTable
from topics.actors.rpc.session import LinkSession
from topics.actors.rpc.subject_policy import DEFAULT_MODES, Mode, SubjectPolicy
from topics.actors.rpc.transport import Transport
from topics.formats.wire import envelope
from topics.formats.wire.envelope import (
    ErrorCode,
    Failure,
    Malformed,
    Notification,
    Refusal,
    Request,
    Success,
)
from topics.formats.wire.message import ERROR, Message, PeerGone

log: Final = structlog.get_logger(__name__)

PLANS_MAX: Final = 1024  # of a session; a peer that makes up subjects must not fill the memory


class RpcErrorPayload(NamedTuple):
    """The error answer of a failed handler (§7)."""

    code: int
    message: str
    data: Any = None


ErrorMapper: TypeAlias = Callable[[Exception, InboundMessage], RpcErrorPayload]


def default_error_mapper(error: Exception, _message: InboundMessage) -> RpcErrorPayload:
    """2000 with the error's text."""
    return RpcErrorPayload(ErrorCode.APPLICATION, str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """``rpc_timeout_ms`` runs from the moment that a request's plain handlers have returned."""

    rpc_timeout_ms: int = 30_000
    subject_policy: SubjectPolicy = field(default_factory=SubjectPolicy)
    error_mapper: ErrorMapper = default_error_mapper

    def __post_init__(self) -> None:
        if self.rpc_timeout_ms <= 0:
            raise ValueError(f"rpc_timeout_ms must be above 0, not {self.rpc_timeout_ms}")


class MessageRouter(RouteTable):
    """Global registrations, the link sessions, and the dispatch between them.

    The owner runs `expire_overdue` in a nursery, opens a session when a link comes up, hands every
    received message to `dispatch` and closes the session when the link goes down.
    """

    def __init__(self, config: RouterConfig | None = None) -> None:
        self._config = config or RouterConfig()
        # A set with an order: the same run expires in the same order.
        self._sessions: dict[LinkSession, None] = {}
        self._timeout = self._config.rpc_timeout_ms / 1000
        # `expire_overdue` waits for it while no request is open.
        self._idle: trio.Event | None = None
        super().__init__(self._config.subject_policy, self._drop_plans)

    def open_session(self, peer_id: str, transport: Transport) -> LinkSession:
        """A new session; the global handlers serve it from now on."""
        session = LinkSession(peer_id, transport, self._config.subject_policy, self._forget_session)
        self._sessions[session] = None
        return session

    def close(self) -> None:
        """Close every session (its listeners still see all handlers), then clear the global
        handlers (§8).
        """
        for session in tuple(self._sessions):
            session.close()
        self.clear()

    def dispatch(self, session: LinkSession, message: Message) -> Coroutine[Any, Any, None] | None:
        """Run the plain handlers of a message. Nothing that the peer sends makes it raise.

        None: all handlers have run. Otherwise one is asynchronous: the caller starts the coroutine
        in a nursery, which awaits that handler and runs the rest. Messages that arrive on a closed
        session are dropped.
        """
        if session.closed:
            session.release(message)
            return None
        if message.flags & ERROR:
            self._take_refusal(session, message)
            return None
        kind, routes = session.plans.get(message.subject) or self._plan(session, message.subject)
        if kind == "rpc":
            return self._dispatch_rpc(session, message, routes)
        if kind == "event":
            return self._dispatch_event(session, message, routes)
        if kind == "custom":
            return self._deliver(InboundMessage(session, message), routes)
        if kind == "reserved":
            self._refuse(session, message, ErrorCode.UNSUPPORTED_FEATURE, "reserved subject prefix")
        else:
            self._refuse(
                session, message, ErrorCode.INVALID_FRAME, "subject is under no allowed prefix"
            )
        return None

    async def expire_overdue(self) -> NoReturn:
        """Answer 1103 for every request whose deadline has passed. One task for all requests; it
        sleeps until the next deadline.
        """
        while True:
            deadline = self._expire_until(trio.current_time())
            if deadline is not None:
                await trio.sleep_until(deadline)
            else:
                self._idle = trio.Event()
                await self._idle.wait()
                self._idle = None

    # Resolving a subject

    def _plan(self, session: LinkSession, subject: str) -> Plan:
        kind = self._config.subject_policy.kind_of(subject)
        routes = (
            ()
            if kind is None or kind == "reserved"
            else self._routes_for(session, subject, DEFAULT_MODES[kind])
        )
        if len(session.plans) >= PLANS_MAX:
            session.plans.clear()
        plan = session.plans[subject] = Plan(kind, routes)
        return plan

    def _routes_for(
        self, session: LinkSession, subject: str, default: Mode
    ) -> tuple[Registration, ...]:
        # sort() is stable: among equal ranks the session's handlers stay before the global ones,
        # both in registration order.
        matching = [*session.router.matching(subject), *self.matching(subject)]
        matching.sort(key=attrgetter("rank"), reverse=True)
        for count, route in enumerate(matching, 1):
            if (route.mode or default) == "exclusive":
                return tuple(matching[:count])
        return tuple(matching)

    def _forget_session(self, session: LinkSession) -> None:
        del self._sessions[session]

    def _drop_plans(self) -> None:
        for session in self._sessions:
            session.plans.clear()

    # The kinds of subjects

    def _dispatch_rpc(
        self, session: LinkSession, message: Message, routes: tuple[Registration, ...]
    ) -> Coroutine[Any, Any, None] | None:
        decoded = envelope.decode(message.payload)
        if type(decoded) is Request:
            rpc = RpcContext(session, message, decoded)
            if routes:
                return self._deliver(InboundMessage(session, message, rpc), routes)
            rpc.error(ErrorCode.UNSUPPORTED_METHOD, "Method not found")
            return None
        if type(decoded) is Success or type(decoded) is Failure:
            session.take_answer(message, decoded)
            return None
        reason = (
            decoded.reason if type(decoded) is Malformed else "a notification cannot be answered"
        )
        self._refuse(session, message, ErrorCode.INVALID_FRAME, f"malformed payload: {reason}")
        return None

    def _dispatch_event(
        self, session: LinkSession, message: Message, routes: tuple[Registration, ...]
    ) -> Coroutine[Any, Any, None] | None:
        decoded = envelope.decode(message.payload)
        if type(decoded) is Notification:
            return self._deliver(InboundMessage(session, message, None, decoded), routes)
        reason = decoded.reason if type(decoded) is Malformed else "not a notification"
        log.warning(
            "event dropped", subject=message.subject, peer_id=session.peer_id, reason=reason
        )
        session.release(message)
        return None

    def _take_refusal(self, session: LinkSession, message: Message) -> None:
        # An Refusal is never answered: two sides would refuse each other's refusals for ever.
        session.release(message)
        error = envelope.decode_refusal(message.payload)
        if type(error) is Refusal:
            session.take_refusal(error)
        else:
            log.warning("refusal dropped", peer_id=session.peer_id, message_id=message.message_id)

    def _refuse(self, session: LinkSession, message: Message, code: int, reason: str) -> None:
        session.release(message)
        try:
            session.transport.send_refusal(code, reason, message.message_id)
        except PeerGone:
            log.debug(
                "refusal not sent", subject=message.subject, peer_id=session.peer_id, code=int(code)
            )

    # Running handlers

    def _deliver(
        self, message: InboundMessage, routes: tuple[Registration, ...]
    ) -> Coroutine[Any, Any, None] | None:
        remaining = iter(routes)
        waiting = self._run_plain(message, remaining)
        rpc = message.rpc
        if rpc is not None and rpc.timed and rpc.open and not message.session.closed:
            self._start_clock(message.session, rpc)
        if waiting is not None:
            return self._run_rest(message, waiting, remaining)
        if rpc is None:
            message.release()
        return None

    def _run_plain(
        self, message: InboundMessage, routes: Iterator[Registration]
    ) -> Awaitable[None] | None:
        """Run handlers until one returns an awaitable, and return that."""
        for route in routes:
            if not route.active:
                continue
            try:
                waiting = route.handler(message)
            except Exception as error:
                if self._handler_failed(message, error):
                    return None
            else:
                if waiting is not None:
                    return waiting
        return None

    async def _run_rest(
        self,
        message: InboundMessage,
        waiting: Awaitable[None] | None,
        routes: Iterator[Registration],
    ) -> None:
        while waiting is not None:
            try:
                await waiting
            except Exception as error:
                if self._handler_failed(message, error):
                    return
            except BaseException:
                message.release()  # cancelled: no handler reads it any more
                raise
            waiting = self._run_plain(message, routes)
        if message.rpc is None:
            message.release()

    def _handler_failed(self, message: InboundMessage, error: Exception) -> bool:
        """Answer or log the error. True: no further handler may run, because a caller that was told
        of a failure must not find the work done.
        """
        rpc = message.rpc
        if rpc is not None and rpc.open:
            self._answer_failure(message, rpc, error)
            return True
        log.warning(
            "handler failed", subject=message.subject, peer_id=message.peer_id, exc_info=error
        )
        if rpc is None:
            return False
        message.release()  # it had timed out, so no answer has released it
        return True

    def _answer_failure(self, message: InboundMessage, rpc: RpcContext, error: Exception) -> None:
        try:
            rpc.error(*self._config.error_mapper(error, message))
        except Exception:
            log.exception("error mapper failed", subject=message.subject, handler_error=repr(error))
            if rpc.open:
                rpc.error(ErrorCode.APPLICATION, "handler failed")

    # Deadlines

    def _start_clock(self, session: PeerSession, rpc: RpcContext) -> None:
        # A dict, not a queue: an answered request leaves at once and frees its message.
        session.unanswered[rpc] = trio.current_time() + self._timeout
        if self._idle is not None:
            self._idle.set()

    def _expire_until(self, now: float) -> float | None:
        """Expire what is due and return the next deadline. All requests have one timeout, so the
        first of a session is its earliest.
        """
        upcoming: list[float] = []
        for session in tuple(self._sessions):
            unanswered = session.unanswered
            while unanswered:
                rpc, deadline = next(iter(unanswered.items()))
                if deadline > now:
                    upcoming.append(deadline)
                    break
                del unanswered[rpc]
                rpc.expire()
        return min(upcoming, default=None)

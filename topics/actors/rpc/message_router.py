"""Message router: dispatches messages to handlers, by the rules of ``decisions/0003``.

    message -> policy: reserved 1003, not allowed 1002
            -> rpc     request: 1002 malformed, 1101 no handler, 2000 handler raised,
                       1103 no answer in time
                       answer: ends the call that it answers
               event   not a notification: logged, dropped; a handler that raises: logged, the
                       next one runs
               custom  the payload is opaque; a handler that raises: logged, the next one runs

Handlers of one message run in order, each after the one before has finished: exact matches, then
prefixes, longer ones first; among equals the session's handlers before the global ones, then in
registration order; up to and with the first exclusive handler. A subject is resolved once for each
session: what follows is one look-up.

The router is general: it knows no subject of this program.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

import structlog
import trio
from msgspec.structs import force_setattr

from topics.actors.rpc.route_table import (
    DEFAULT_MODES,
    Mode,
    Plan,
    Registration,
    RouteTable,
    SubjectKind,
    SubjectPolicy,
    Unsubscribe,
)
from topics.actors.rpc.session import InboundMessage, LinkSession, RemoteError, Transport
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.envelope import (
    UNREADABLE,
    ErrorCode,
    Notification,
    Request,
    decode,
    decode_refusal,
)
from topics.formats.wire.message import ERROR, Message, PeerGone

log: Final = structlog.get_logger(__name__)

REFUSALS: Final[dict[SubjectKind | None, str]] = {
    None: "subject is under no allowed prefix",
    "reserved": "reserved subject prefix",
}
WANTED: Final = {"rpc": "request", "event": "notification"}


class RpcErrorPayload(NamedTuple):
    """How a failed handler's request is answered (`decisions/0003` §7)."""

    code: int
    message: str
    data: Any = None


Inbound: TypeAlias = InboundMessage[Any, Any]
ErrorMapper: TypeAlias = Callable[[Exception, Inbound], RpcErrorPayload]


def default_error_mapper(error: Exception, _message: Inbound) -> RpcErrorPayload:
    """2000 with the error's text."""
    return RpcErrorPayload(ErrorCode.APPLICATION, str(error))


def _as_it_is(error: RemoteError | PeerGone) -> Exception:
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """``rpc_timeout_ms`` runs from the moment that a request's plain handlers have returned."""

    rpc_timeout_ms: int = 30_000
    subject_policy: SubjectPolicy = field(default_factory=SubjectPolicy)
    error_mapper: ErrorMapper = default_error_mapper


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
        super().__init__(self._drop_plans)

    def open_session(
        self,
        peer_id: str,
        transport: Transport,
        failure_of: Callable[[RemoteError | PeerGone], Exception] = _as_it_is,
    ) -> LinkSession:
        """A new session; the global handlers serve it from now on. ``failure_of``: what its callers
        are told of a call that has failed.
        """
        session = LinkSession(peer_id, transport, self._forget_session, failure_of)
        self._sessions[session] = None
        return session

    def serve(
        self, call: Call[P, R], handler: Callable[[InboundMessage[P, R]], Awaitable[None] | None]
    ) -> Unsubscribe:
        """Handle the requests of ``call`` on all sessions."""
        return self.route(call.subject, handler, params=call.params)

    def subscribe(
        self, event: Event[P], handler: Callable[[InboundMessage[P, Any]], None]
    ) -> Unsubscribe:
        """Handle the events of ``event`` on all sessions."""
        return self.route(event.subject, handler, params=event.params)

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
        if session.closed or message.flags & ERROR:
            self._take_refusal(session, message)
            return None
        kind, routes = session.plans.get(message.subject) or self._plan(session, message.subject)
        envelope, params, cid = None, None, 0
        if kind == "rpc" or kind == "event":
            try:
                envelope = decode(message.payload)
            except UNREADABLE as error:
                self._refuse(session, message, kind, str(error))
                return None
            if type(envelope) is Request and kind == "rpc":
                cid = envelope.cid
            elif kind == "rpc" and type(envelope) is not Notification:
                session.take_answer(message, envelope)
                return None
            elif kind == "rpc" or type(envelope) is not Notification:
                self._refuse(session, message, kind, f"not a {WANTED[kind]}")
                return None
            params = envelope.params
        elif kind != "custom":
            self._refuse(session, message, kind, "")
            return None
        inbound: Inbound = InboundMessage(
            session,
            message,
            message.attachment,
            message.parked_ms,
            envelope,
            params,
            cid,
            kind == "rpc",
        )
        remaining = iter(routes)
        waiting = self._run_plain(inbound, remaining)
        if inbound.is_open and inbound.is_timed:
            self._keep_open(inbound, routes)
        elif waiting is None and kind != "rpc":
            session.release(message)
        return None if waiting is None else self._run_rest(inbound, waiting, remaining)

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

    # What has no handler

    def _take_refusal(self, session: LinkSession, message: Message) -> None:
        """A refusal, or any message on a closed session. A refusal is never answered: two sides
        would refuse each other's refusals for ever.
        """
        session.release(message)
        if session.closed:
            return
        try:
            session.take_refusal(decode_refusal(message.payload))
        except UNREADABLE:
            log.warning("refusal dropped", peer_id=session.peer_id, message_id=message.message_id)

    def _refuse(
        self, session: LinkSession, message: Message, kind: SubjectKind | None, reason: str
    ) -> None:
        """Refuse a message, or drop an event, because of its subject or of its payload."""
        session.release(message)
        if kind == "event":
            log.warning(
                "event dropped", subject=message.subject, peer_id=session.peer_id, reason=reason
            )
            return
        code = ErrorCode.UNSUPPORTED_FEATURE if kind == "reserved" else ErrorCode.INVALID_FRAME
        text = REFUSALS.get(kind) or f"malformed payload: {reason}"
        try:
            session.transport.send_refusal(code, text, message.message_id)
        except PeerGone:
            log.debug(
                "refusal not sent", subject=message.subject, peer_id=session.peer_id, code=int(code)
            )

    # Running handlers

    def _keep_open(self, request: Inbound, routes: tuple[Registration, ...]) -> None:
        """The plain handlers have not answered: from now on the time of the request runs."""
        if not routes:
            request.error(ErrorCode.UNSUPPORTED_METHOD, "Method not found")
        elif not request.session.closed:
            # A dict, not a queue: an answered request leaves at once and frees its message.
            request.session.unanswered[request] = trio.current_time() + self._timeout
            if self._idle is not None:
                self._idle.set()

    def _run_plain(
        self, message: Inbound, routes: Iterator[Registration]
    ) -> Awaitable[None] | None:
        """Run handlers until one returns an awaitable, and return that."""
        for route in routes:
            if not route.active:
                continue
            try:
                if route.params is not None:
                    assert message.envelope is not None, "only calls and events have params"
                    params = tuple.__new__(route.params, message.envelope.params)
                    force_setattr(message, "params", params)
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
        message: Inbound,
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

    def _handler_failed(self, message: Inbound, error: Exception) -> bool:
        """Answer or log the error. True: no further handler may run, because a caller that was told
        of a failure must not find the work done.
        """
        if message.is_open:
            self._answer_failure(message, error)
            return True
        log.warning(
            "handler failed", subject=message.subject, peer_id=message.peer_id, exc_info=error
        )
        if message.rpc is None:
            return False
        message.release()  # it had timed out, so no answer has released it
        return True

    def _answer_failure(self, message: Inbound, error: Exception) -> None:
        try:
            message.error(*self._config.error_mapper(error, message))
        except Exception:
            log.exception("error mapper failed", subject=message.subject, handler_error=repr(error))
            if message.is_open:
                message.error(ErrorCode.APPLICATION, "handler failed")

    # Deadlines

    def _expire_until(self, now: float) -> float | None:
        """Expire what is due and return the next deadline. All requests have one timeout, so the
        first of a session is its earliest.
        """
        upcoming: list[float] = []
        for session in tuple(self._sessions):
            unanswered = session.unanswered
            while unanswered:
                message, deadline = next(iter(unanswered.items()))
                if deadline > now:
                    upcoming.append(deadline)
                    break
                del unanswered[message]
                message.expire()
        return min(upcoming, default=None)

"""Message router: dispatches messages to handlers, according to ``decisions/0003``.

A subject with a reserved prefix is refused with error 1003, and a subject that has no allowed
prefix with error 1002. Otherwise the kind of the subject determines how a message is handled:

    kind    message         outcome
    rpc     request         the reply of a handler, or an error: 1101 no handler, 2000 the handler
                            raised, 1103 no reply in time
    rpc     reply           completes the call to which it belongs
    rpc     any other       refused with error 1002
    event   notification    the handlers run; if one raises, this is logged and the next one runs
    event   any other       logged and dropped
    custom  opaque payload  as for a notification

The handlers of a message run sequentially, each after the previous one has finished. Exact matches
precede prefixes, and longer prefixes precede shorter prefixes. Among equal matches, the session's
handlers precede the global handlers, and each group is in registration order. The first exclusive
handler is the last handler that runs. A subject is resolved once for each session, and later
messages need one look-up.

The router is generic: it contains none of this program's subjects.
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
from topics.formats.wire.message import ERROR, Message, PeerClosed

log = structlog.get_logger()

REFUSALS: Final[dict[SubjectKind | None, str]] = {
    None: "subject has no allowed prefix",
    "reserved": "reserved subject prefix",
}
EXPECTED_KIND: Final = {"rpc": "request", "event": "notification"}


class RpcErrorPayload(NamedTuple):
    """The reply to a request whose handler failed (§7)."""

    code: int
    message: str
    data: Any = None


Inbound: TypeAlias = InboundMessage[Any, Any]
ErrorMapper: TypeAlias = Callable[[Exception, Inbound], RpcErrorPayload]


def default_error_mapper(error: Exception, _message: Inbound) -> RpcErrorPayload:
    """Map every error to code 2000 with the error's text."""
    return RpcErrorPayload(ErrorCode.APPLICATION, str(error))


def _unmapped(error: RemoteError | PeerClosed) -> Exception:
    return error


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRouterConfig:
    """Settings of a router.

    ``rpc_timeout_ms`` is measured from the moment at which the synchronous handlers of a request
    have returned.
    """

    rpc_timeout_ms: int = 30_000
    subject_policy: SubjectPolicy = field(default_factory=SubjectPolicy)
    error_mapper: ErrorMapper = default_error_mapper


class MessageRouter(RouteTable):
    """Holds the global handlers and the link sessions, and dispatches messages to handlers.

    The owner opens a session when a link opens, passes every received message to `dispatch`, and
    closes the session when the link closes. If it serves requests, it also runs `expire_overdue` in
    a nursery.
    """

    def __init__(self, config: MessageRouterConfig | None = None) -> None:
        self._config = config or MessageRouterConfig()
        # A dict is used as an ordered set, so that requests expire in a deterministic order.
        self._sessions: dict[LinkSession, None] = {}
        self._timeout = self._config.rpc_timeout_ms / 1000
        # `expire_overdue` waits for this event while no request is open. None at other times.
        self._idle: trio.Event | None = None
        super().__init__(self._drop_plans)

    def open_session(
        self,
        peer_id: str,
        transport: Transport,
        failure_of: Callable[[RemoteError | PeerClosed], Exception] = _unmapped,
    ) -> LinkSession:
        """Open a session. The global handlers also handle its messages.

        ``failure_of`` maps an error of a call to the exception that its caller gets.
        """
        session = LinkSession(peer_id, transport, self._remove_session, failure_of)
        self._sessions[session] = None
        return session

    def serve(
        self, call: Call[P, R], handler: Callable[[InboundMessage[P, R]], Awaitable[None] | None]
    ) -> Unsubscribe:
        """Register ``handler`` for the requests of ``call`` on all sessions."""
        return self.route(call.subject, handler, params=call.params)

    def subscribe(
        self, event: Event[P], handler: Callable[[InboundMessage[P, Any]], None]
    ) -> Unsubscribe:
        """Register ``handler`` for the notifications of type ``event`` on all sessions."""
        return self.route(event.subject, handler, params=event.params)

    def close(self) -> None:
        """Close every session, then remove the global handlers (§8).

        The close listeners of the sessions run while all handlers are still registered.
        """
        for session in tuple(self._sessions):
            session.close()
        self.clear()

    def dispatch(self, session: LinkSession, message: Message) -> Coroutine[Any, Any, None] | None:
        """Run the handlers of a message up to the first asynchronous handler.

        Return None if all handlers have run. Otherwise the caller must start the returned coroutine
        in a nursery. It awaits the asynchronous handler and runs the remaining handlers. Messages
        that arrive on a closed session are dropped. No input from the peer can cause an exception.
        """
        # A refusal is recognized by its flag before its subject is examined, so that a refusal is
        # never refused itself.
        if session.closed or message.flags & ERROR:
            self._handle_refusal(session, message)
            return None
        # The plan of a subject is computed once for each session and dropped when a registration
        # changes.
        kind, routes = session.plans.get(message.subject) or self._plan(session, message.subject)
        envelope, params, cid = None, None, 0
        # Decode the envelope of a call or an event. A custom payload is not decoded. The branches
        # below accept a request, a reply or a notification, each only where the kind of the
        # subject allows it.
        if kind == "rpc" or kind == "event":
            try:
                envelope = decode(message.payload)
            except UNREADABLE as error:
                self._refuse(session, message, kind, str(error))
                return None
            if type(envelope) is Request and kind == "rpc":
                cid = envelope.cid
            elif kind == "rpc" and type(envelope) is not Notification:
                session.handle_reply(message, envelope)
                return None
            elif kind == "rpc" or type(envelope) is not Notification:
                self._refuse(session, message, kind, f"not a {EXPECTED_KIND[kind]}")
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
        # Run the synchronous handlers now. If they do not reply to a request, it stays open, with a
        # timeout.
        remaining = iter(routes)
        waiting = self._run_plain(inbound, remaining)
        # If the handlers have not replied, start the timeout. If there is no handler, this replies
        # with an error immediately.
        if inbound.is_open and inbound.is_timed:
            self._start_timeout(inbound, routes)
        # If all handlers of an event or a custom message have run, release the memory of the
        # message. A request keeps its memory until it gets its reply.
        elif waiting is None and kind != "rpc":
            session.release(message)
        return None if waiting is None else self._run_remaining(inbound, waiting, remaining)

    async def expire_overdue(self) -> NoReturn:
        """Reply 1103 to every request whose deadline has passed.

        One task does this for all requests. It sleeps until the next deadline.
        """
        while True:
            # Deadlines ascend within a session, so a pass checks only the first request of each
            # session.
            deadline = self._expire_until(trio.current_time())
            if deadline is not None:
                await trio.sleep_until(deadline)
            else:
                # No request is open. `_start_timeout` sets this event when the next request
                # arrives.
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
        # sort() is stable: among equal ranks, the session's handlers stay before the global
        # handlers, and both are in registration order.
        matching = [*session.router.matching(subject), *self.matching(subject)]
        matching.sort(key=attrgetter("rank"), reverse=True)
        for count, route in enumerate(matching, 1):
            if (route.mode or default) == "exclusive":
                return tuple(matching[:count])
        return tuple(matching)

    def _remove_session(self, session: LinkSession) -> None:
        del self._sessions[session]

    def _drop_plans(self) -> None:
        for session in self._sessions:
            session.plans.clear()

    # Messages without a handler

    def _handle_refusal(self, session: LinkSession, message: Message) -> None:
        """Handle a refusal, or drop any message on a closed session.

        A refusal gets no reply. Otherwise two sides could refuse each other's refusals forever.
        """
        session.release(message)
        if session.closed:
            return
        try:
            session.handle_refusal(decode_refusal(message.payload))
        except UNREADABLE:
            log.warning("refusal dropped", peer_id=session.peer_id, message_id=message.message_id)

    def _refuse(
        self, session: LinkSession, message: Message, kind: SubjectKind | None, reason: str
    ) -> None:
        """Refuse a message, or drop an event, because of its subject or its payload."""
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
        except PeerClosed:
            log.debug(
                "refusal not sent", subject=message.subject, peer_id=session.peer_id, code=int(code)
            )

    # Running handlers

    def _start_timeout(self, request: Inbound, routes: tuple[Registration, ...]) -> None:
        """Start the timeout of a request to which the synchronous handlers have not replied."""
        if not routes:
            request.error(ErrorCode.UNSUPPORTED_METHOD, "Method not found")
        elif not request.session.closed:
            # A dict, not a queue, so that the request is removed, and its message freed, as soon as
            # a handler replies.
            request.session.unanswered[request] = trio.current_time() + self._timeout
            if self._idle is not None:
                self._idle.set()

    def _run_plain(
        self, message: Inbound, routes: Iterator[Registration]
    ) -> Awaitable[None] | None:
        """Run handlers until one returns an awaitable.

        Return the awaitable, or None after the last handler.
        """
        for route in routes:
            # A handler that was removed by an earlier handler of this message must not run.
            if not route.active:
                continue
            try:
                if route.params is not None:
                    assert message.envelope is not None, "only calls and events have params"
                    # The params type of the route is a tuple, so the decoded list is converted
                    # without validation. Each handler may have registered its own type.
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

    async def _run_remaining(
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
                message.release()  # the task was cancelled, so no handler reads the message anymore
                raise
            waiting = self._run_plain(message, routes)
        if message.rpc is None:
            message.release()

    def _handler_failed(self, message: Inbound, error: Exception) -> bool:
        """Reply with the error, or log it. Return whether the remaining handlers must be skipped.

        They must be skipped for a request, because a caller that got an error must be able to
        assume that the work was not done.
        """
        if message.is_open:
            self._answer_failure(message, error)
            return True
        log.warning(
            "handler failed", subject=message.subject, peer_id=message.peer_id, exc_info=error
        )
        if message.rpc is None:
            return False
        message.release()  # the request had timed out, so no reply has released the attachment
        return True

    def _answer_failure(self, message: Inbound, error: Exception) -> None:
        try:
            message.error(*self._config.error_mapper(error, message))
        except Exception:
            log.exception("error mapper failed", subject=message.subject, error=repr(error))
            if message.is_open:
                message.error(ErrorCode.APPLICATION, "handler failed")

    # Deadlines

    def _expire_until(self, now: float) -> float | None:
        """Expire overdue requests, and return the next deadline.

        All requests have the same timeout, so the first open request of a session has the earliest
        deadline.
        """
        upcoming: list[float] = []
        # Copy the sessions, because the reply of an expired request may close one of them.
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

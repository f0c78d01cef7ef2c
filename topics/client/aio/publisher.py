"""Publisher: sends records for many topics over one WebSocket (§7.3).

    publish --> pending --> socket --> server
                   '<-- acknowledgements, in any order across topics --'

Messages are sent without waiting for the acknowledgements of earlier ones. After the connection is
lost, or the server requests a pause, all pending messages are sent again over a new connection, in
order and with their idempotency keys, so each record is stored once. A record that the server has
refused temporarily, because it was throttled or its shard was restarting, may be stored after later
ones, because messages that were already sent may arrive when the shard serves again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Final, Unpack

import msgspec
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from topics.client import calls
from topics.client.aio.caller import AsyncCaller
from topics.client.aio.sender import AsyncSender
from topics.client.calls import SHUTDOWN_S, Attempts, RecordFields
from topics.client.errors import ConnectionLost, TopicsError, command_error, error_of
from topics.client.http import certificates, headers_of, shut_down
from topics.client.tasks import AsyncSent, async_alongside, async_connect
from topics.client.values import encoded

# The server does not read from a socket with 1024 unanswered messages. A send that it blocks would
# also block the replies.
IN_FLIGHT_MAX: Final = 512


class _Reply(msgspec.Struct):
    op: str
    request_id: int | None = None
    last_seq: int = 0
    code: str = ""
    message: str = ""
    detail: dict[str, Any] = {}


_reply = msgspec.json.Decoder(_Reply).decode


class AsyncPublisher(AsyncSender):
    """Publishes records in the background.

    A record that the server has refused temporarily may be stored after later ones. Use a
    `Producer` if the order must be kept.
    """

    def __init__(self, client: AsyncCaller, *, max_unacked: int, name: str) -> None:
        super().__init__("publisher", client, max_unacked)
        self._run_name = name
        self._unsent: deque[int] = deque()  # numbers of records, in order
        self._socket: Any = None
        self._failure: TopicsError | None = None  # the failure that ended the connection

    async def publish(
        self, topic: str, data: Any, **fields: Unpack[RecordFields]
    ) -> AsyncSent[int]:
        """Append a payload with the ``fields`` of a record (§2) to ``topic``. Wait while too many
        bytes are unacknowledged. The result is the record's seq, or the `TopicsError` of the
        publish. Raise `ValueError` for a value without a JSON form, and after `close`.
        """
        fields.setdefault("node", self._caller.node)
        record = encoded(calls.record_of(data, fields))
        message = b'"topic":%b,"records":[%b]}' % (encoded(topic), record)
        await self._start_sending()
        async with self._changed:
            number = await self._admit(message)
            self._unsent.append(number)
            self._changed.notify_all()
            return self._pending[number].sent

    async def _run(self) -> None:
        attempts = Attempts(self._caller.retry_streams)
        failure: Exception | None
        while await self._has_records():
            try:
                failure = await self._connection(attempts)
                if failure is None or not self._pending:
                    continue
                pause_s = attempts.pause_after(failure)
                self._caller.report_pause(failure, pause_s)
                await self._stop.wait(pause_s)
                now = monotonic()
            except Exception as error:  # a permanent failure, or an exception of ``on_pause``
                failure, now = error, inf
            async with self._changed:
                late = [number for number, each in self._pending.items() if each.until <= now]
                self._fail(late, failure)

    async def _has_records(self) -> bool:
        """Wait for records. Return False after `close`."""
        async with self._changed:
            await self._changed.wait_until(lambda: bool(self._pending) or self._is_closing)
            return bool(self._pending) and not self._stop.is_set()

    async def _connection(self, attempts: Attempts) -> TopicsError | None:
        """Send all pending records over one connection. Return its failure, if any."""
        target = self._caller.target
        try:
            async with async_connect(
                f"ws{target.url.removeprefix('http')}/v0/ws",
                ssl=certificates(target),
                additional_headers=headers_of(target),
                user_agent_header=None,
                proxy=None,
                compression=None,
                open_timeout=self._caller.connect_timeout,
                close_timeout=SHUTDOWN_S,
            ) as socket:
                self._socket, self._failure = socket, None
                exchange = partial(self._exchange, socket, attempts)
                await self._stop.interrupts(exchange, partial(shut_down_socket, socket))
        except InvalidStatus as error:
            answer = error.response
            return error_of(answer.status_code, answer.headers, bytes(answer.body))
        except ConnectionClosed as error:
            return self._failure or ConnectionLost(f"{target.url}: {error}")
        except (OSError, WebSocketException) as error:
            return ConnectionLost(f"{target.url}: {error or type(error).__name__}", was_sent=False)
        finally:
            self._socket = None
        return self._failure

    async def _exchange(self, socket: Any, attempts: Attempts) -> None:
        async with self._changed:
            self._unsent = deque(self._pending)
        async with async_alongside(partial(self._receive, socket, attempts), socket):
            while messages := await self._next_messages():
                for message in messages:
                    await socket.send(message, text=True)

    async def _next_messages(self) -> list[bytes]:
        """Wait for records and return their messages. Return an empty list if the connection must
        end.
        """
        async with self._changed:
            await self._changed.wait_until(
                lambda: (
                    bool(self._unsent and self._in_flight <= IN_FLIGHT_MAX // 2)
                    or self._failure is not None
                    or (self._is_closing and not self._pending)
                )
            )
            if self._failure is not None:
                return []
            most = min(IN_FLIGHT_MAX - self._in_flight, len(self._unsent))
            numbers = [self._unsent.popleft() for _ in range(most)]
            return [
                b'{"op":"publish","request_id":%d,"return_seqs":false,"idempotency_key":"%b:%d",%b'
                % (number, self._run_name.encode(), number, self._pending[number].message)
                for number in numbers
                if number in self._pending
            ]

    @property
    def _in_flight(self) -> int:
        return len(self._pending) - len(self._unsent)

    async def _receive(self, socket: Any, attempts: Attempts) -> None:
        """Handle the replies of one connection until it ends."""
        failure: TopicsError
        try:
            while True:
                await self._handle(_reply(await socket.recv(decode=False)))
                attempts.succeeded()
        except TopicsError as error:
            failure = error
        except (WebSocketException, OSError, msgspec.MsgspecError) as error:
            failure = ConnectionLost(f"{self._caller.target.url}: {error}")
        async with self._changed:
            self._failure = failure
            self._changed.notify_all()

    async def _handle(self, reply: _Reply) -> None:
        """Finish the record of a reply. Raise `TopicsError` if the record must be sent again."""
        error = (
            None if reply.op == "ack" else command_error(reply.code, reply.message, reply.detail)
        )
        if error is not None and (reply.request_id is None or error.is_temporary):
            raise error
        async with self._changed:
            number = reply.request_id or 0
            if error is None:
                self._acknowledge(number, reply.last_seq)
            else:
                self._fail([number], error)


def shut_down_socket(socket: Any) -> None:
    """Unblock other threads that read from or write to a WebSocket."""
    shut_down(socket.socket)

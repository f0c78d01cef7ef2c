"""The cold bridge: one admitted request through the unmodified Hypercorn stack.

    admitted head, body --> head written here --> H11Protocol --> Quart --> answer --> fast lane

The fast lane has read and admitted the request and has its body. Hypercorn gets a head that this
module writes: method, path as the route table understood it, a fixed Host. Request and body travel
beside it, as a `ColdCall` in the ASGI scope.

No byte of a client may reach Hypercorn: there is no second reading of one message, no upgrade that
it could take and no error answer of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from topics.formats.buffers import Buffer
from topics.front.backend import Body
from topics.front.request import Request

CALL = "topics.call"  # in the ASGI scope's state


@dataclass(frozen=True, slots=True)
class ColdLane:
    """What Hypercorn needs to answer a request."""

    app: ASGIWrapper
    config: Config
    context: WorkerContext


@dataclass(slots=True)
class ColdCall:
    """What the application answers. ``at``: monotonic ns. ``close``: the answer is the last of its
    connection.
    """

    request: Request
    body: Body | None
    at: int
    close: bool
    has_answered: bool = False
    on_unsent: Callable[[], None] | None = None  # as that of `Answer`

    def take_body(self) -> Body:
        """The body changes hands here; once."""
        assert self.body is not None, "the body is taken once"
        body, self.body = self.body, None
        return body

    def drop_body(self) -> None:
        """Free a body that was not taken."""
        body, self.body = self.body, None
        if body is not None and not isinstance(body, Buffer):
            body.free()


async def ask_hypercorn(cold: ColdLane, call: ColdCall) -> bytes:
    """The answer, head and body. Nothing here waits for the client."""
    sent: list[bytes] = []

    async def take(event: Event) -> None:
        if isinstance(event, RawData):
            sent.append(event.data)

    try:
        async with TaskGroup() as group:
            protocol = H11Protocol(
                cold.app,
                cold.config,
                cold.context,
                group,
                connection_state=ConnectionState({CALL: call}),
                ssl=False,
                client=None,
                server=None,
                send=take,
            )
            await protocol.initiate()
            await protocol.handle(RawData(_head_of(call.request)))
    finally:
        call.drop_body()
    assert call.has_answered, "Hypercorn answered without asking the application"
    return b"".join(sent)


def _head_of(request: Request) -> bytes:
    path = request.route.path_of(request.topic or request.router)
    return f"{request.method} {path} HTTP/1.1\r\nhost: topics\r\n\r\n".encode("ascii")

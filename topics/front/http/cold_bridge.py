"""The cold bridge: one admitted request through the unmodified Hypercorn stack.

    admitted head, body --> head written here --> H11Protocol --> Quart --> answer --> fast lane

The fast lane has read and admitted the request and has its body. Hypercorn gets a head that this
module writes: method, path as the route table understood it, a fixed Host. Request and body travel
beside it, as a `ColdCall` in the ASGI scope.

No byte of a client may reach Hypercorn: there is no second reading of one message, no upgrade that
it could take and no error answer of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from topics.front.http.cold_call import CALL, ColdCall
from topics.front.request import Request


@dataclass(frozen=True, slots=True)
class ColdStack:
    """What Hypercorn needs to answer a request."""

    app: ASGIWrapper
    config: Config
    context: WorkerContext

    async def ask(self, call: ColdCall) -> bytes:
        """The answer, head and body. Nothing here waits for the client."""
        sent: list[bytes] = []

        async def take(event: Event) -> None:
            if isinstance(event, RawData):
                sent.append(event.data)

        try:
            async with TaskGroup() as group:
                protocol = H11Protocol(
                    self.app,
                    self.config,
                    self.context,
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

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """The life of the application: requests are for the time within."""
        lifespan = Lifespan(self.app, self.config, {})
        async with trio.open_nursery() as nursery:
            await nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            yield
            await lifespan.wait_for_shutdown()
            nursery.cancel_scope.cancel()


def _head_of(request: Request) -> bytes:
    path = request.route.path_of(request.topic or request.router)
    return f"{request.method} {path} HTTP/1.1\r\nhost: topics\r\n\r\n".encode("ascii")

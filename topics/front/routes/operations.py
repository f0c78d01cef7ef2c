"""What the routes do: ask the shards and hand their finished bytes on. Both lanes run these and
nothing else.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from topics import __version__
from topics.actors.shard_client.errors import failures_of
from topics.config import Settings
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.api.requests import limits_of
from topics.formats.api.watch import decode_watch
from topics.formats.buffers import Buffer
from topics.formats.wire import calls
from topics.formats.wire.calls import AppendOutcome
from topics.formats.wire.contract import Call, P
from topics.front.answers import Answer, StreamAnswer, compressed, elapsed_ms, json_answer
from topics.front.backend import Backend, Body, listed, unready
from topics.front.errors import error_answer
from topics.front.guard import Guard, Request, draining
from topics.front.http.connections import Connection
from topics.front.live.live import Live
from topics.front.live.watch import HEADERS, Watches
from topics.front.live.web_socket import SocketStream, upgrade
from topics.front.routes.queries import encode_cursor
from topics.front.routes.read_ahead import ReadAhead

LOG = logging.getLogger("topics.front")
Operation = Callable[[Request, Body, int], Awaitable[Answer]]


class Operations:
    """One method for each row of the table. ``at`` is monotonic ns when the front had the whole
    request.
    """

    def __init__(self, backend: Backend, guard: Guard, settings: Settings, live: Live) -> None:
        self._settings, self._live = settings, live
        self._limits = limits_of(settings)
        self._watches = Watches(settings, live)
        self._read_ahead = ReadAhead(backend)
        self._backend = backend
        self._guard = guard
        self._started_ns = time.monotonic_ns()
        self.by_name: dict[str, Operation] = {
            "append": self.append,
            "diff": self.diff,
            "topic.put": self.topic_put,
            "topic.get": self.topic_get,
            "topic.delete": self.topic_delete,
            "topic.delete_records": self.topic_delete_records,
            "topic.list": self.topic_list,
            "health": self.health,
            "ready": self.ready,
            "hello": self.hello,
            "watch": self.watch,
            "watch.open": self.watch_open,
            "ws": self.web_socket,
        }

    async def run(self, request: Request, body: Body, at: int) -> Answer:
        """Answer an admitted request; every failure is an answer too. Takes over ``body``."""
        try:
            answer = await self.by_name[request.route.name](request, body, at)
            return await compressed(answer) if request.gzip_out else answer
        except Internal as failure:
            # Not LOG.exception: the traceback is the shard's, not ours.
            name, message = request.route.name, failure.message
            LOG.error("unexpected shard error: route %s: %s", name, message)  # noqa: TRY400
            return error_answer(Internal("internal error"), at)
        except TopicsError as failure:
            return self.failed(failure, at)
        except Exception:
            LOG.exception("a bug while answering %s", request.route.name)
            return error_answer(Internal("internal error"), at)

    def failed(self, failure: TopicsError, at: int = 0) -> Answer:
        """The answer to an expected failure; a `NotReady` says how far the replay is (§0.6)."""
        if isinstance(failure, NotReady):
            failure.detail.setdefault("replay_progress", self._backend.readiness().progress)
        return error_answer(failure, at)

    async def append(self, request: Request, body: Body, at: int) -> Answer:
        """§2."""
        params = calls.AppendParams(
            request.topic,
            request.key,
            request.query.return_seqs,
            listed(request.prefixes),
            at,
        )
        reply = await self._backend.call(request.shard, calls.APPEND, params, body)
        outcome = reply.result.outcomes[0]
        if outcome == AppendOutcome.FAILED:
            reply.release()
            raise failures_of(reply.result)[0]
        return Answer(201 if outcome == AppendOutcome.CREATED else 200, reply.body, reply)

    async def diff(self, request: Request, body: Body, at: int) -> Answer:
        """§3. May wait for as long as the body's ``wait_ms`` says."""
        with self._guard.waiting():
            return await self._read_ahead.diff(request, body, at)

    async def topic_put(self, request: Request, body: Body, at: int) -> Answer:
        """§1.1."""
        params = calls.TopicPutParams(request.topic, listed(request.prefixes), at)
        reply = await self._backend.call(request.shard, calls.TOPIC_PUT, params, body)
        return Answer(201 if reply.result.created else 200, reply.body, reply)

    async def topic_get(self, request: Request, _body: Body, at: int) -> Answer:
        """§1.2."""
        params = calls.TopicGetParams(request.topic, request.query.touch, at)
        return await self._ask(request, calls.TOPIC_GET, params)

    async def topic_delete(self, request: Request, _body: Body, at: int) -> Answer:
        """§1.4."""
        params = calls.TopicDeleteParams(request.topic, request.query.if_empty, at)
        return await self._ask(request, calls.TOPIC_DELETE, params)

    async def topic_delete_records(self, request: Request, body: Body, at: int) -> Answer:
        """§5."""
        params = calls.DeleteRecordsParams(request.topic, at)
        return await self._ask(request, calls.DELETE_RECORDS, params, body)

    async def topic_list(self, request: Request, _body: Body, at: int) -> Answer:
        """§1.3. Every shard gives its names in order; one more than fits tells whether another page
        follows.
        """
        query = request.query
        params = calls.TopicListParams(
            query.prefix, query.after, query.page_size + 1, query.touch, listed(request.prefixes)
        )
        pages = [await self._page(shard, params) for shard in range(self._backend.shards)]
        items = list(heapq.merge(*pages))[: query.page_size + 1]
        page = items[: query.page_size]
        more = {"next_cursor": encode_cursor(page[-1][0])} if len(items) > len(page) else {}
        tail = {**more, "performance": {"server_total_ms": elapsed_ms(at)}}
        topics = b",".join([item for _, item in page])
        return Answer(200, b'{"topics":[' + topics + b"]," + msgspec.json.encode(tail)[1:])

    async def watch(self, request: Request, body: Body, at: int) -> Answer:
        """§7, the POST."""
        if not isinstance(body, Buffer):
            view = bytes(body.view)
            body.free()
            body = view
        asked = decode_watch(body, self._limits, self._settings.max_watch_topics)
        members = await self._watches.create(
            asked, request.principal, lenient=request.query.lenient
        )
        return json_answer(members, at)

    async def watch_open(self, request: Request, _body: Body, _at: int) -> Answer:
        """§7, the GET: an event stream."""
        assert request.head is not None, "a request for a stream keeps its head"
        session = self._watches.open(request.wid, request.principal, request.head.joined(b"accept"))
        seen = request.head.joined(b"last-event-id").strip()

        async def run(connection: Connection) -> None:
            await self._watches.stream(session, connection, seen)

        return Answer(200, b"", stream=StreamAnswer(b"200 OK", HEADERS, run))

    async def web_socket(self, request: Request, _body: Body, _at: int) -> Answer:
        """§7, the WebSocket."""
        assert request.head is not None, "a request for a stream keeps its head"
        headers = upgrade(request.head)
        self._live.check_room(request.principal)

        async def run(connection: Connection) -> None:
            await SocketStream(
                self._live, connection, request.principal, self._settings, self._limits
            ).run()

        return Answer(101, b"", stream=StreamAnswer(b"101 Switching Protocols", headers, run))

    async def health(self, _request: Request, _body: Body, at: int) -> Answer:
        """§8.1. 200 as long as this process can answer."""
        uptime_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
        return json_answer({"status": "ok", "version": __version__, "uptime_ms": uptime_ms}, at)

    async def ready(self, _request: Request, _body: Body, at: int) -> Answer:
        """§8.2."""
        readiness = self._backend.readiness()
        if readiness.draining or self._guard.draining:
            raise draining()
        if not readiness.ready:
            raise unready(readiness)
        answer = {"status": "ready", "wal_replay_complete": True, "topics": readiness.topics}
        if (
            readiness.limited
        ):  # readers are served, so the server is ready; whoever watches it is told
            answer["shards"] = [
                {"shard": shard, "state": state} for shard, state in readiness.limited
            ]
        return json_answer(answer, at)

    async def hello(self, _request: Request, _body: Body, at: int) -> Answer:
        """The root: who is here and where to look."""
        links = {"health": "/v0/health", "ready": "/v0/ready"}
        return json_answer({"name": "topics", "version": __version__, "links": links}, at)

    async def _ask(
        self, request: Request, call: Call[P, calls.NoResult], params: P, body: Body = b""
    ) -> Answer:
        reply = await self._backend.call(request.shard, call, params, body)
        return Answer(200, reply.body, reply)

    async def _page(self, shard: int, params: calls.TopicListParams) -> list[tuple[str, bytes]]:
        reply = await self._backend.call(shard, calls.TOPIC_LIST, params)
        try:
            return [(name, bytes(item)) for name, item in reply.result.items]
        finally:
            reply.release()

"""Opening: the servers of a write, and its topics, made with a long idempotency window or kept.

Repeated tasks and jobs are known by their idempotency keys, so the topic must remember them for
longer than the time between two attempts. The contract's default of two minutes is too short.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from typing import Self

from topics.spark.client.http import TopicsClient
from topics.spark.client.request_error import RequestError
from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError
from topics.spark.sink.options import HOUR_MS, SinkOptions
from topics.spark.source.connection import RetryBudget, errors_of

PROBE = "topics-spark-probe"  # a prefix that is listed to see whether a server takes the key


class Clients:
    """One client for each server, opened when it is first needed. ``places``: the servers of topics
    that were located before.
    """

    def __init__(
        self,
        options: SinkOptions,
        budget: RetryBudget = RetryBudget.FULL,
        places: Mapping[str, Server] | None = None,
    ) -> None:
        self._connection = options.connection
        self._budget = budget
        self.places = dict(places or {})
        self._open: dict[tuple[Server, RetryBudget], TopicsClient] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._stack.close()

    def of(self, server: Server) -> TopicsClient:
        """The client of that server."""
        return self._client(server, self._budget)

    def _client(self, server: Server, budget: RetryBudget) -> TopicsClient:
        if (server, budget) not in self._open:
            client = self._connection.client(server, budget)
            self._open[server, budget] = self._stack.enter_context(client)
        return self._open[server, budget]

    def server_of(self, topic: str) -> Server:
        """Where the topic is, or is to be made. Raises as `Connection.locate`."""
        if topic not in self.places:
            self.places[topic] = self._connection.locate(
                topic, self._budget, lambda *asked: nullcontext(self._client(*asked))
            )
        return self.places[topic]

    def head(self, topic: str) -> int:
        """The topic's head seq, 0 without one. Raises `ServerError`."""
        server = self.server_of(topic)
        with errors_of(server):
            return int((self.of(server).state(topic) or {"head_seq": 0})["head_seq"])

    @property
    def retries(self) -> int:
        """Tries after the first, of all requests so far."""
        return sum(client.retries for client in self._open.values())


def open_topic(
    clients: Clients,
    options: SinkOptions,
    topic: str,
    warn: Callable[[str], None],
    *,
    change: bool = False,
) -> int:
    """Make the topic if it is absent and may be made; its head seq. One that exists keeps its
    config; with ``change``, it gets the durability of the options.

    Raises `ServerError`, or ``JobError`` for a queue and for a topic that may not be made.
    """
    server = clients.server_of(topic)
    client = clients.of(server)
    with errors_of(server):
        state = client.state(topic)
        if state is None and not options.create:
            raise JobError(
                f'topic "{topic}": there is no such topic on {server.address}; make it, or leave'
                " the option createTopic out"
            )
        if state is not None and state["config"].get("type", "log") != "log":
            raise JobError(
                f'topic "{topic}" is a {state["config"]["type"]}; rows are loaded into a topic of'
                " type log only"
            )
        wanted = options.durability if change else None
        if state is None:
            client.put_topic(topic, options.config())
        elif wanted not in (None, state["config"]["durability"]):
            client.put_topic(topic, {"durability": wanted})
        if state is None and (state := client.state(topic)) is None:
            gone = "it was deleted at once after it was made"
            raise RequestError(topic, 404, "topic_not_found", gone)
    window_ms = state["config"]["idempotency_window_ms"]
    if window_ms < HOUR_MS:
        warn(
            f'topic "{topic}" remembers idempotency keys for {window_ms / 1000:g} s only: a task or'
            " job that is repeated later appends its records again. Set idempotency_window_ms to an"
            f" hour or more (PUT /v0/topics/{topic})."
        )
    return int(state["head_seq"])


def plan(
    options: SinkOptions,
    warn: Callable[[str], None],
    budget: RetryBudget = RetryBudget.PLANNING,
    *,
    change: bool = False,
) -> tuple[dict[str, int], dict[str, Server]]:
    """Open the topic that the options name; its head and its server, by topic. Without one, only
    see whether the servers take this key. Raises as `open_topic`.

    ``PLANNING``: ask also for the right to append.
    """
    topic = options.topic
    with Clients(options, budget) as clients:
        if topic is None:
            for server in options.connection.servers.members:
                with errors_of(server):
                    next(clients.of(server).names(PROBE), None)
            return {}, {}
        head = open_topic(clients, options, topic, warn, change=change)
        if budget is RetryBudget.PLANNING:
            server = clients.server_of(topic)
            with errors_of(server):
                clients.of(server).check_access(topic)
        return {topic: head}, clients.places

"""Opening: opens the topics of a write, and creates topics that do not exist.

A created topic gets a long idempotency window, because it must store the keys of requests until a
failed task or job is repeated. The API's default of two minutes is too short for this.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.spark.client.http import RequestError, TopicsClient
from topics.spark.client.servers import Server
from topics.spark.job_errors import JobError
from topics.spark.sink.options import HOUR_MS, SinkOptions
from topics.spark.source.connection import Clients, RetryBudget, errors_of

PROBE = "topics-spark-probe"  # topics with this prefix are listed to check the key


def open_topic(
    clients: Clients,
    options: SinkOptions,
    topic: str,
    warn: Callable[[str], None],
    *,
    is_job: bool = False,
) -> int | None:
    """Create the topic if it does not exist and the options allow it. Return its head seq, or None
    if the key lacks the scope ``read``, which a job needs. An existing topic keeps its config,
    except that a job sets the durability in the options.

    Raise `ServerError`, or ``JobError`` for a topic that may not be created. A job also raises
    ``JobError`` for a queue, because the job compares counts that acks change.
    """
    server = clients.server_of(topic)
    client = clients.of(server)
    with errors_of(server):
        try:
            state = client.state(topic)
        except RequestError as error:
            if error.code != "forbidden" or is_job:
                raise
            return None  # a key with only the write scope can still append to an existing topic
        if state is None and not options.create:
            raise JobError(
                f'topic "{topic}": there is no such topic on {server.address}; create it, or leave'
                " the option createTopic out"
            )
        if is_job and state is not None and state.type != "log":
            raise JobError(f'topic "{topic}" is a queue; jobs append to topics of type log only')
        wanted = options.durability if is_job else None
        if state is None:
            client.put_topic(topic, options.config())
        elif wanted not in (None, state.config["durability"]):
            client.put_topic(topic, {"durability": wanted})
        if state is None and (state := client.state(topic)) is None:
            reason = "it was deleted immediately after its creation"
            raise RequestError(topic, 404, "topic_not_found", reason)
    window_ms = state.config["idempotency_window_ms"]
    if window_ms < HOUR_MS:
        warn(
            f'topic "{topic}" stores idempotency keys for {window_ms / 1000:g} s only: a task or'
            " job that is repeated later appends its records again. Set idempotency_window_ms to an"
            f" hour or more (PUT /v0/topics/{topic})."
        )
    return state.head_seq


def plan(
    options: SinkOptions,
    warn: Callable[[str], None],
    budget: RetryBudget = RetryBudget.PLANNING,
    *,
    is_job: bool = False,
) -> tuple[dict[str, int], dict[str, Server]]:
    """Open the topic in the options. Return its head, if the key may read it, and its server, both
    by topic. If the options contain no topic, check that the servers accept the key, and return
    empty dicts. Raises the exceptions of `open_topic`.

    With ``PLANNING``, also check that the key may append.
    """
    topic = options.topic
    with Clients(options.connection, budget) as clients:
        if topic is None:
            for server in options.connection.servers.members:
                with errors_of(server):
                    _check_key(clients.of(server))
            return {}, {}
        head = open_topic(clients, options, topic, warn, is_job=is_job)
        if budget is RetryBudget.PLANNING:
            server = clients.server_of(topic)
            with errors_of(server):
                clients.of(server).check_access(topic)
        return {} if head is None else {topic: head}, clients.places


def _check_key(client: TopicsClient) -> None:
    """Raise `RequestError` if the server does not accept the key."""
    try:
        next(client.listing(PROBE), None)
    except RequestError as error:
        if error.code != "forbidden":  # the key lacks the scope read, but is valid
            raise

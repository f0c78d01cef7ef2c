"""Connection: the servers of a read or a write, the key, and how long to retry.

It is made on the driver when a query is planned and travels to the executors, the key inside. No
text of it shows the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from topics.spark.client.http import DEFAULT_URL, Target, TopicsClient, mistake_in
from topics.spark.client.request_error import RequestError
from topics.spark.client.servers import BadServers, Server, Servers

CONNECTION_OPTIONS = (
    "servers",
    "url",
    "apiToken",
    "apiKey",
    "apiKeyFile",
    "numRetries",
    "connectTimeoutMs",
    "readTimeoutMs",
)
KAFKA_ADVICE = {
    "kafka.bootstrap.servers": (
        f"name a topics server with the option servers, for example {DEFAULT_URL}"
    ),
    "assign": "name topics with subscribe; a topic is one partition on one server",
    "groupidprefix": "offsets are in the checkpoint; there are no groups",
    "startingoffsetsbytimestampstrategy": (
        "a start after the last record begins at the end, as latest does"
    ),
}
RETRIES = 60  # nearly ten minutes, with pauses of 10 s: a server that restarts reads its log
CONNECT_TIMEOUT_MS = 5_000
READ_TIMEOUT_MS = 120_000
PLANNING_CONNECTS = 2  # more tries, when a query is planned: a wrong address is told in seconds
AWAY = ("unreachable", "throttled", "not_ready", "shutting_down")
QUICK_RETRIES = 1
QUICK_CONNECT_S = 1.0
QUICK_READ_S = 10.0


class BadOption(ValueError):
    """An option of a read or a write that cannot be meant. The text is one line for people."""


class ServerError(Exception):
    """A server refused or did not answer. One line: server, topic, code and what to do."""


class RetryBudget(Enum):
    """How long a request is retried if the server does not respond."""

    QUICK = "at most one retry with short timeouts, if other servers can be read meanwhile"
    PLANNING = "few retries if no connection is established; the same as FULL if one is"
    FULL = "all retries that the options allow"


ClientFactory = Callable[[Server, RetryBudget], AbstractContextManager[TopicsClient]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Servers, key and retries. Picklable."""

    servers: Servers
    api_key: str | None = field(default=None, repr=False)  # a secret: never in a log or a plan
    retries: int = RETRIES
    connect_s: float = CONNECT_TIMEOUT_MS / 1000
    read_s: float = READ_TIMEOUT_MS / 1000

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Connection:
        """The connection of these options, with lower-case or camel-case names; the environment
        gives what they leave out. Reads the key's file. Raises `BadOption`.
        """
        given = lowered(options)
        _refuse_kafka(given)
        servers, key = _servers(given), _api_key(given)
        if key and any(server.url != server.address for server in servers.members):
            raise BadOption(
                "an address with user info and an API key are both given, and a request has one"
                " Authorization header: leave out the user info, or the key (an option or"
                " TOPICS_API_KEY)"
            )
        connection = cls(
            servers=servers,
            api_key=key,
            retries=number(given, "numRetries", RETRIES, least=0),
            connect_s=number(given, "connectTimeoutMs", CONNECT_TIMEOUT_MS) / 1000,
            read_s=number(given, "readTimeoutMs", READ_TIMEOUT_MS) / 1000,
        )
        for server in connection.servers.members:
            if mistake := mistake_in(connection.target(server)):
                raise BadOption(mistake)
        return connection

    def target(self, server: Server) -> Target:
        """How to reach that server."""
        return Target(
            url=server.url,
            api_key=self.api_key,
            retries=self.retries,
            connect_s=self.connect_s,
            read_s=self.read_s,
        )

    def client(self, server: Server, budget: RetryBudget = RetryBudget.FULL) -> TopicsClient:
        """A client of that server; to be closed."""
        target = self.target(server)
        if budget is RetryBudget.PLANNING:
            target = replace(target, connect_retries=min(PLANNING_CONNECTS, target.retries))
        elif budget is RetryBudget.QUICK:
            target = replace(
                target,
                retries=min(QUICK_RETRIES, target.retries),
                connect_s=min(QUICK_CONNECT_S, target.connect_s),
                read_s=min(QUICK_READ_S, target.read_s),
                retry_after_max_s=1,
            )
        return TopicsClient(target)

    def locate(
        self,
        topic: str,
        budget: RetryBudget = RetryBudget.PLANNING,
        client: ClientFactory | None = None,
    ) -> Server:
        """The server that has the topic; of one that no server has, the server that it is made on.

        All servers are asked. One that does not answer is passed over when another has the topic,
        else it is awaited with ``budget``, and is a `ServerError`. Raises `RequestError` for a
        topic on two servers. ``client`` gives the clients; by default, each is made and closed.
        """
        ask = client or self.client
        members = self.servers.members
        if len(members) == 1:
            return members[0]
        found, silent = [], []
        for server in members:
            try:
                if _has(ask, server, topic, RetryBudget.QUICK):
                    found.append(server)
            except ServerError:
                silent.append(server)
        if not found:
            found = [server for server in silent if _has(ask, server, topic, budget)]
        if len(found) > 1:
            raise on_two_servers(topic, found[0], found[1])
        return found[0] if found else self.servers.owner(topic)

    def server(self, name: str) -> Server:
        """The server of that name. Raises `BadOption` when there is none."""
        found = self.servers.named(name)
        if found is None:
            names = ", ".join(member.name for member in self.servers.members)
            raise BadOption(f'servers has no server "{name}"; there are: {names}')
        return found


def is_away(error: ServerError) -> bool:
    """Return whether the server did not reply, or replied that it is busy, starting or stopping."""
    cause = error.__cause__
    return isinstance(cause, RequestError) and cause.code in AWAY


@contextmanager
def errors_of(server: Server) -> Iterator[None]:
    """Refusals of that server as a `ServerError` that names it."""
    try:
        yield
    except RequestError as error:
        raise ServerError(f"server {label(server)}: {error}") from error


def _has(ask: ClientFactory, server: Server, topic: str, budget: RetryBudget) -> bool:
    with errors_of(server), ask(server, budget) as client:
        return client.state(topic) is not None


def on_two_servers(topic: str, one: Server, other: Server) -> RequestError:
    """The refusal of a topic that is on two servers: neither of them is the topic."""
    where = f"it is on server {label(one)} and on server {label(other)}"
    return RequestError(topic, 409, "topic_on_two_servers", where)


def label(server: Server) -> str:
    """Return the name and the address for messages, once if they are the same."""
    address = server.address
    return address if server.name == address else f"{server.name} ({address})"


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case, as Spark gives them to a source."""
    return {name.lower(): value for name, value in options.items()}


def number(options: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    """A whole number. Raises `BadOption`."""
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text.strip().replace("_", ""))
    except ValueError:
        raise BadOption(f"option {name} is {text!r}, which is no whole number") from None
    if value < least:
        raise BadOption(f"option {name} is {value}; it is at least {least}")
    return value


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false. Raises `BadOption`."""
    return choice(options, name, ("true", "false"), default=str(default).lower()) == "true"


def choice(options: Mapping[str, str], name: str, values: tuple[str, ...], *, default: str) -> str:
    """One of some values, whatever the case. Raises `BadOption`."""
    text = options.get(name.lower(), default).strip()
    for value in values:
        if text.lower() == value.lower():
            return value
    raise BadOption(f"option {name} is {text!r}; it is one of: {', '.join(values)}")


def _servers(given: Mapping[str, str]) -> Servers:
    if "servers" in given and "url" in given:
        raise BadOption("options servers and url are the same; give one of them")
    text = given.get("servers") or given.get("url") or os.environ.get("TOPICS_URL") or DEFAULT_URL
    try:
        return Servers.parse(text)
    except BadServers as error:
        raise BadOption(str(error)) from None


def _api_key(given: Mapping[str, str]) -> str | None:
    # Spark redacts options whose names contain "token" in plans, and not "key".
    named = [name for name in ("apiToken", "apiKey", "apiKeyFile") if name.lower() in given]
    if len(named) > 1:
        raise BadOption(f"options {' and '.join(named)} are both given; give one of them")
    if named != ["apiKeyFile"]:
        key = given[named[0].lower()] if named else None
        return key or os.environ.get("TOPICS_API_KEY") or None
    path = given["apikeyfile"]
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadOption(f"option apiKeyFile: {path} cannot be read: {reason}") from None
    if not key:
        raise BadOption(f"option apiKeyFile: {path} is empty")
    return key


def _refuse_kafka(given: Mapping[str, str]) -> None:
    for name in given:
        if advice := KAFKA_ADVICE.get(name):
            raise BadOption(f"option {name} is Kafka's: {advice}")
        if name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
            raise BadOption(f"option {name} is Kafka's and has no meaning for topics; leave it out")

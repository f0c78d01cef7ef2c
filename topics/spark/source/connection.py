"""The connection of a read or a write: servers, API key, retries and timeouts.

The driver creates a connection when a query is planned and sends it, with the key, to the
executors. Its string representation never contains the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import NamedTuple, Self

from topics.client import Retry
from topics.client.errors import Refused
from topics.client.settings import checked_key
from topics.spark.client.http import DEFAULT_URL, RequestError, TopicsClient
from topics.spark.client.servers import BadServers, Server, Servers
from topics.spark.interface import DEFAULTS, Use, known_names

KAFKA_ADVICE = {
    "kafka.bootstrap.servers": (
        f"name a topics server with the option servers, for example {DEFAULT_URL}"
    ),
    "groupidprefix": "offsets are in the checkpoint; there are no groups",
    "startingoffsetsbytimestampstrategy": (
        "a start after the last record begins at the end, as latest does"
    ),
}
SIMILARITY = 0.8  # minimum similarity between an unknown option and a suggested one
PLANNING_CONNECTS = 2  # retries during planning, so that a wrong address fails within seconds
AWAY = ("unreachable", "throttled", "not_ready", "shutting_down")
QUICK_RETRIES = 1
QUICK_CONNECT_S = 1.0
QUICK_READ_S = 10.0
QUICK_RETRY_AFTER_S = 1
RETRY_AFTER_MAX_S = 60  # average pause; a request fails if the server requires a longer one
BACKOFF_S = 0.2
BACKOFF_MAX_S = 14.0  # the average pause is 10 s


class BadOption(ValueError):
    """An invalid option of a read or a write. The text is one line for the user."""


class ServerError(Exception):
    """A failed request to a server. The text is one line: server, topic, code and advice."""


class Given(dict[str, str]):
    """The given options by lower-case name, as Spark passes them to a source."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({name.lower(): value for name, value in options.items()})

    def refuse_unknown(self, use: Use) -> None:
        """Raise `BadOption` for a path, and for an unknown option that is similar to a known one.
        Other unknown options belong to Spark or to the other use (read or write).
        """
        known = known_names(use)
        if "path" in self:
            reads, writes = ("subscribe", "load"), ("topic", "save() or .start")
            option, method = reads if use == "read" else writes
            raise BadOption(
                f"a topic has no path: give .option({option!r}, {self['path']!r}) and call"
                f" .{method}() without an argument"
            )
        for name in self:
            near = get_close_matches(name, known, n=1, cutoff=SIMILARITY)
            if name not in known and near:
                raise BadOption(f"there is no option {name}; is it {known[near[0]]}?")

    def only_one(self, *names: str) -> str | None:
        """Return the value of the one option among these that is given, or None. Raise `BadOption`
        if several are given.
        """
        found = [name for name in names if name.lower() in self]
        if len(found) > 1:
            raise BadOption(f"options {' and '.join(found)} are both given; give one of them")
        return found[0] if found else None

    def number(self, name: str, *, least: int = 1) -> int:
        """Return an option that is an integer. Raises `BadOption`."""
        text = self.get(name.lower(), DEFAULTS[name])
        try:
            value = int(text.strip().replace("_", ""))
        except ValueError:
            raise BadOption(f"option {name} is {text!r}, which is not an integer") from None
        if value < least:
            raise BadOption(f"option {name} is {value}; it is at least {least}")
        return value

    def flag(self, name: str) -> bool:
        """Return an option that is true or false. Raises `BadOption`."""
        return self.choice(name, ("true", "false")) == "true"

    def choice(self, name: str, values: tuple[str, ...]) -> str:
        """Return an option that is one of the values, in any case. Raises `BadOption`."""
        text = self.get(name.lower(), DEFAULTS[name]).strip()
        for value in values:
            if text.lower() == value.lower():
                return value
        raise BadOption(f"option {name} is {text!r}; it is one of: {', '.join(values)}")

    def text(self, name: str) -> str | None:
        """Return an option that is a text, or None if it is absent. Raises `BadOption` if empty."""
        text = self.get(name.lower())
        if text == "":
            raise BadOption(f"option {name} is empty")
        return text


class RetryBudget(Enum):
    """Limits the retries of requests to a server that does not respond."""

    QUICK = "at most one retry with short timeouts, if other servers can be read in the meantime"
    PLANNING = "few retries if no connection is established; the same as FULL if one is"
    FULL = "all retries that the options allow"


class TlsFiles(NamedTuple):
    """The files with the certificates and the private key. Each machine reads its own files."""

    ca: str | None
    certificate: str | None
    key: str | None

    @classmethod
    def parse(cls, given: Given, servers: Servers) -> TlsFiles | None:
        """Return the files in the options, or None if none is given. Raises `BadOption`."""
        files = cls(*(given.text(name) for name in ("caFile", "certFile", "keyFile")))
        if files == cls(None, None, None):
            return None
        if files.key and not files.certificate:
            raise BadOption("option keyFile is given without the option certFile")
        if not all(server.url.startswith("https:") for server in servers.members):
            raise BadOption("options caFile and certFile are for servers with https:// addresses")
        files.context()
        return files

    def context(self) -> SSLContext:
        """Read the files and return a context with them. Raises `BadOption`."""
        files = f"caFile: {self.ca}"
        try:
            context = create_default_context(cafile=self.ca)
            if self.certificate:
                files = f"certFile: {self.certificate}" + (f", {self.key}" if self.key else "")
                # The empty password prevents a prompt for an encrypted key.
                context.load_cert_chain(self.certificate, self.key, password="")
        except OSError as error:
            raise BadOption(f"option {files} cannot be read: {error.strerror or error}") from None
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Servers, API key, retries and timeouts. Picklable."""

    servers: Servers
    api_key: str | None = field(default=None, repr=False)  # a secret: never in a log or a plan
    retries: int
    connect_s: float
    read_s: float
    tls: TlsFiles | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Connection:
        """Return the connection that these options specify. Servers and key default to the
        environment. Read the files that the options specify. Raise `BadOption`.
        """
        given = Given(options)
        _refuse_kafka(given)
        servers, key = _servers(given), _api_key(given)
        if key and any(server.url != server.address for server in servers.members):
            raise BadOption(
                "an address with user info and an API key are both given, and a request has one"
                " Authorization header: leave out the user info, or the key (an option or"
                " TOPICS_API_KEY)"
            )
        return cls(
            servers=servers,
            api_key=key,
            retries=given.number("numRetries", least=0),
            connect_s=given.number("connectTimeoutMs") / 1000,
            read_s=given.number("readTimeoutMs") / 1000,
            tls=TlsFiles.parse(given, servers),
        )

    def retry(self, budget: RetryBudget = RetryBudget.FULL) -> Retry:
        """Return the number of retries, and the pauses before them."""
        retries, retry_after_s = self.retries, RETRY_AFTER_MAX_S
        if budget is RetryBudget.QUICK:
            retries, retry_after_s = min(QUICK_RETRIES, retries), QUICK_RETRY_AFTER_S
        connects = min(PLANNING_CONNECTS, retries) if budget is RetryBudget.PLANNING else retries
        return Retry(retries * retry_after_s, BACKOFF_S, BACKOFF_MAX_S, retries, connects)

    def client(self, server: Server, budget: RetryBudget = RetryBudget.FULL) -> TopicsClient:
        """Return a new client for the server. The caller must close the client."""
        is_quick = budget is RetryBudget.QUICK
        return TopicsClient(
            server.url,
            key=self.api_key or "",
            retry=self.retry(budget),
            connect_timeout=min(QUICK_CONNECT_S, self.connect_s) if is_quick else self.connect_s,
            timeout=min(QUICK_READ_S, self.read_s) if is_quick else self.read_s,
            ssl_context=None if self.tls is None else self.tls.context(),
        )

    def server(self, name: str) -> Server:
        """Return the server with this name. Raises `BadOption` if there is none."""
        names = [member.name for member in self.servers.members]
        if name not in names:
            raise BadOption(f'servers has no server "{name}"; there are: {", ".join(names)}')
        return self.servers.members[names.index(name)]


class Clients:
    """The clients for the servers. Each is opened when it is first used and closed at the end of
    the block. ``budget`` is the default budget. ``places`` contains the known servers of topics.
    Not thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        budget: RetryBudget = RetryBudget.FULL,
        places: Mapping[str, Server] | None = None,
    ) -> None:
        self._connection = connection
        self._budget = budget
        self.places = dict(places or {})
        self._open: dict[tuple[Server, RetryBudget], TopicsClient] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for client in self._open.values():
            client.close()
        self._open.clear()

    def of(self, server: Server, budget: RetryBudget | None = None) -> TopicsClient:
        """Return the client for the server."""
        key = server, budget or self._budget
        if key not in self._open:
            self._open[key] = self._connection.client(*key)
        return self._open[key]

    def server_of(self, topic: str) -> Server:
        """Return the server that has the topic. If no server has it, return the server on which to
        create it.

        All servers are queried. A server that does not respond is ignored if another server has the
        topic. Otherwise it is queried again with the budget, and a failure is raised as a
        `ServerError`. With a key that lacks the scope ``read``, a topic is found only on the server
        that is selected by the topic's name. Raise `RequestError` for a topic on two servers.
        """
        if topic not in self.places:
            self.places[topic] = self._located(topic)
        return self.places[topic]

    def _located(self, topic: str) -> Server:
        servers = self._connection.servers
        if len(servers.members) == 1:
            return servers.members[0]
        found, silent = [], []
        for server in servers.members:
            try:
                if self._has(server, topic, RetryBudget.QUICK):
                    found.append(server)
            except ServerError:
                silent.append(server)
        if not found:
            found = [server for server in silent if self._has(server, topic, self._budget)]
        if len(found) > 1:
            raise on_two_servers(topic, found[0], found[1])
        return found[0] if found else servers.owner(topic)

    def _has(self, server: Server, topic: str, budget: RetryBudget) -> bool:
        """Return whether the server has the topic; False if the key lacks the scope ``read``."""
        with errors_of(server):
            try:
                return self.of(server, budget).state(topic) is not None
            except RequestError as error:
                if error.code != "forbidden":
                    raise
                return False

    def head(self, topic: str, budget: RetryBudget | None = None) -> int:
        """Return the head seq of the topic, or 0 if it is absent. Raises `ServerError`."""
        server = self.server_of(topic)
        with errors_of(server):
            state = self.of(server, budget).state(topic)
        return 0 if state is None else state.head_seq

    @property
    def retries(self) -> int:
        """The total number of retries of all requests."""
        return sum(client.retries for client in self._open.values())


def is_away(error: ServerError) -> bool:
    """Return whether the server did not reply, or replied that it is busy, starting or stopping."""
    cause = error.__cause__
    return isinstance(cause, RequestError) and cause.code in AWAY


@contextmanager
def errors_of(server: Server) -> Iterator[None]:
    """Convert errors of requests to the server to a `ServerError` with the server's name."""
    try:
        yield
    except RequestError as error:
        raise ServerError(f"server {label(server)}: {error}") from error


def on_two_servers(topic: str, one: Server, other: Server) -> RequestError:
    """Return the error for a topic that exists on two servers."""
    where = f"it is on server {label(one)} and on server {label(other)}"
    return RequestError(topic, 409, "topic_on_two_servers", where)


def label(server: Server) -> str:
    """Return the name and the address for messages, or only the address if they are equal."""
    address = server.address
    return address if server.name == address else f"{server.name} ({address})"


def _servers(given: Given) -> Servers:
    option = given.only_one("servers", "url")
    text = given[option] if option else os.environ.get("TOPICS_URL")
    if not text:
        # Spark does not report the master to this process, so it cannot allow a local default.
        raise BadOption(
            f"no server is named: give the option servers, for example {DEFAULT_URL}, or set"
            " TOPICS_URL before the Spark session starts"
        )
    try:
        return Servers.parse(text)
    except BadServers as error:
        raise BadOption(str(error)) from None


def _api_key(given: Given) -> str | None:
    key = _given_key(given)
    try:
        return checked_key(key) if key else None
    except Refused:
        raise BadOption("the API key has a character that is not visible ASCII") from None


def _given_key(given: Given) -> str | None:
    option = given.only_one("apiToken", "apiKey", "apiKeyFile")
    if option != "apiKeyFile":
        key = given[option.lower()] if option else None
        return key or os.environ.get("TOPICS_API_KEY")
    path = given["apikeyfile"]
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadOption(f"option apiKeyFile: {path} cannot be read: {reason}") from None
    if not key:
        raise BadOption(f"option apiKeyFile: {path} is empty")
    return key


def _refuse_kafka(given: Given) -> None:
    for name in given:
        if advice := KAFKA_ADVICE.get(name):
            raise BadOption(f"option {name} is Kafka's: {advice}")
        if name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
            raise BadOption(f"option {name} is Kafka's and has no meaning for topics; leave it out")

"""The connection of a read or a write: servers, API key, retries and timeouts.

The driver creates it when a query is planned and sends it, with the key, to the executors. Its
text never contains the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from ssl import SSLContext, create_default_context

from topics.client.errors import Refused
from topics.client.settings import checked_key
from topics.spark.client.http import DEFAULT_URL, Target, TopicsClient
from topics.spark.client.request_error import RequestError
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
SIMILARITY = 0.8  # minimum similarity of an unknown option and the option that is suggested
PLANNING_CONNECTS = 2  # retries while a query is planned: a wrong address fails within seconds
AWAY = ("unreachable", "throttled", "not_ready", "shutting_down")
QUICK_RETRIES = 1
QUICK_CONNECT_S = 1.0
QUICK_READ_S = 10.0


class BadOption(ValueError):
    """An invalid option of a read or a write. The text is one line for the user."""


class ServerError(Exception):
    """A server refused a request or did not respond. The text is one line: server, topic, code and
    advice.
    """


class RetryBudget(Enum):
    """How long a request is retried if the server does not respond."""

    QUICK = "at most one retry with short timeouts, if other servers can be read meanwhile"
    PLANNING = "few retries if no connection is established; the same as FULL if one is"
    FULL = "all retries that the options allow"


ClientFactory = Callable[[Server, RetryBudget], AbstractContextManager[TopicsClient]]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The files of certificates and the private key. Each machine reads its own files."""

    ca: str | None
    certificate: str | None
    key: str | None

    @classmethod
    def parse(cls, given: Mapping[str, str], servers: Servers) -> TlsFiles | None:
        """Return the files of the options, None without one. Raises `BadOption`."""
        files = cls(*(text_of(given, name) for name in ("caFile", "certFile", "keyFile")))
        if files == cls(None, None, None):
            return None
        if files.key and not files.certificate:
            raise BadOption("option keyFile is given without the option certFile")
        if not all(server.url.startswith("https:") for server in servers.members):
            raise BadOption("options caFile and certFile are for servers with https:// addresses")
        files.context()
        return files

    def context(self) -> SSLContext:
        """Read the files. Raises `BadOption`."""
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
        """Return the connection of these options. Servers and key default to the environment. Reads
        the files that the options name. Raises `BadOption`.
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
        return cls(
            servers=servers,
            api_key=key,
            retries=number(given, "numRetries", least=0),
            connect_s=number(given, "connectTimeoutMs") / 1000,
            read_s=number(given, "readTimeoutMs") / 1000,
            tls=TlsFiles.parse(given, servers),
        )

    def target(self, server: Server) -> Target:
        """Return the client's settings for the server."""
        return Target(
            url=server.url,
            api_key=self.api_key,
            retries=self.retries,
            connect_s=self.connect_s,
            read_s=self.read_s,
        )

    def client(self, server: Server, budget: RetryBudget = RetryBudget.FULL) -> TopicsClient:
        """Return a client of the server, which the caller must close."""
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
        return TopicsClient(target, None if self.tls is None else self.tls.context())

    def locate(
        self,
        topic: str,
        budget: RetryBudget = RetryBudget.PLANNING,
        client: ClientFactory | None = None,
    ) -> Server:
        """Return the server that has the topic. If no server has it, return the server on which to
        create it.

        All servers are queried. A server that does not respond is ignored if another one has the
        topic; otherwise it is queried again with ``budget``, and its failure is a `ServerError`. A
        key without the scope ``read`` finds only a topic that is on the server of its name.
        Raises `RequestError` for a topic on two servers. ``client`` provides the clients; by
        default, each is created and closed.
        """
        connect = client or self.client
        members = self.servers.members
        if len(members) == 1:
            return members[0]
        found, silent = [], []
        for server in members:
            try:
                if _has(connect, server, topic, RetryBudget.QUICK):
                    found.append(server)
            except ServerError:
                silent.append(server)
        if not found:
            found = [server for server in silent if _has(connect, server, topic, budget)]
        if len(found) > 1:
            raise on_two_servers(topic, found[0], found[1])
        return found[0] if found else self.servers.owner(topic)

    def server(self, name: str) -> Server:
        """Return the server with this name. Raises `BadOption` if there is none."""
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
    """Convert the errors of requests to the server to a `ServerError` with the server's name."""
    try:
        yield
    except RequestError as error:
        raise ServerError(f"server {label(server)}: {error}") from error


def _has(connect: ClientFactory, server: Server, topic: str, budget: RetryBudget) -> bool:
    """Return whether the server has the topic; False if the key lacks the scope ``read``."""
    with errors_of(server), connect(server, budget) as client:
        try:
            return client.state(topic) is not None
        except RequestError as error:
            if error.code != "forbidden":
                raise
            return False


def on_two_servers(topic: str, one: Server, other: Server) -> RequestError:
    """Return the error for a topic that exists on two servers."""
    where = f"it is on server {label(one)} and on server {label(other)}"
    return RequestError(topic, 409, "topic_on_two_servers", where)


def label(server: Server) -> str:
    """Return the name and the address for messages, or only the address if they are equal."""
    address = server.address
    return address if server.name == address else f"{server.name} ({address})"


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with their names in lower case, as Spark passes them to a source."""
    return {name.lower(): value for name, value in options.items()}


def refuse_unknown(given: Mapping[str, str], use: Use) -> None:
    """Raise `BadOption` for a path, and for an unknown option that is similar to a known one. Other
    unknown options belong to Spark or to the other kind of use.
    """
    known = known_names(use)
    if "path" in given:
        option, method = ("subscribe", "load") if use == "read" else ("topic", "save() or .start")
        raise BadOption(
            f"a topic has no path: give .option({option!r}, {given['path']!r}) and call .{method}()"
            " without an argument"
        )
    for name in given:
        if name not in known and (near := get_close_matches(name, known, n=1, cutoff=SIMILARITY)):
            raise BadOption(f"there is no option {name}; is it {known[near[0]]}?")


def only_one(given: Mapping[str, str], *names: str) -> str | None:
    """Return which of these options is given, None if none is. Raises `BadOption` for several."""
    found = [name for name in names if name.lower() in given]
    if len(found) > 1:
        raise BadOption(f"options {' and '.join(found)} are both given; give one of them")
    return found[0] if found else None


def number(given: Mapping[str, str], name: str, *, least: int = 1) -> int:
    """Return an option that is an integer. Raises `BadOption`."""
    text = given.get(name.lower(), DEFAULTS[name])
    try:
        value = int(text.strip().replace("_", ""))
    except ValueError:
        raise BadOption(f"option {name} is {text!r}, which is not an integer") from None
    if value < least:
        raise BadOption(f"option {name} is {value}; it is at least {least}")
    return value


def flag(given: Mapping[str, str], name: str) -> bool:
    """Return an option that is true or false. Raises `BadOption`."""
    return choice(given, name, ("true", "false")) == "true"


def choice(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """Return an option that is one of the values, in any case. Raises `BadOption`."""
    text = given.get(name.lower(), DEFAULTS[name]).strip()
    for value in values:
        if text.lower() == value.lower():
            return value
    raise BadOption(f"option {name} is {text!r}; it is one of: {', '.join(values)}")


def text_of(given: Mapping[str, str], name: str) -> str | None:
    """Return an option that is a text, None if it is absent. Raises `BadOption` if it is empty."""
    text = given.get(name.lower())
    if text == "":
        raise BadOption(f"option {name} is empty")
    return text


def _servers(given: Mapping[str, str]) -> Servers:
    option = only_one(given, "servers", "url")
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


def _api_key(given: Mapping[str, str]) -> str | None:
    key = _given_key(given)
    try:
        return checked_key(key) if key else None
    except Refused:
        raise BadOption("the API key has a character that is not visible ASCII") from None


def _given_key(given: Mapping[str, str]) -> str | None:
    option = only_one(given, "apiToken", "apiKey", "apiKeyFile")
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


def _refuse_kafka(given: Mapping[str, str]) -> None:
    for name in given:
        if advice := KAFKA_ADVICE.get(name):
            raise BadOption(f"option {name} is Kafka's: {advice}")
        if name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
            raise BadOption(f"option {name} is Kafka's and has no meaning for topics; leave it out")

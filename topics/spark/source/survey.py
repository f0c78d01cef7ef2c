"""Survey: what the servers hold now. The driver's side of reads; executors have none.

It asks each named topic for its state, and lists those of a pattern, a thousand in a request.
Connections are kept, so that a stream asks again at the cost of a round trip.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from topics.client.errors import RequestError
from topics.client.http import Record, TopicsClient
from topics.client.ranges import Lost
from topics.client.servers import Server
from topics.spark.source.connection import Connection, ServerError, errors_of, label
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import Head, Heads, Step

QUICK_RETRIES = 1
QUICK_CONNECT_S = 1.0
QUICK_READ_S = 10.0


class Patience(Enum):
    """How long to ask a server that does not answer."""

    QUICK = "a try or two: others go on without it"
    PLANNING = "seconds, when it cannot be reached at all; as FULL when it is busy"
    FULL = "every retry that the options give"


class Survey:
    """Asks the servers of a read. Not for several threads, not picklable; to be closed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = options.connection
        self._clients: dict[tuple[str, Patience], TopicsClient] = {}

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    @property
    def servers(self) -> tuple[Server, ...]:
        """Those that may have a wanted topic."""
        members = self._connection.servers.members
        if self._options.pattern is not None:
            return members
        owners = {self._connection.servers.owner(topic) for topic in self._options.topics}
        return tuple(member for member in members if member in owners)

    def heads(self, patience: Patience) -> Heads:
        """What all of them hold. Raises `ServerError` of the first that does not answer."""
        return {server.name: self.heads_of(server, patience) for server in self.servers}

    def heads_of(self, server: Server, patience: Patience) -> dict[str, Head]:
        """What the server holds of the wanted topics; one that is absent is left out."""
        client = self._client(server, patience)
        with errors_of(server):
            if self._options.pattern is not None:
                return self._matching(client)
            owner = self._connection.servers.owner
            mine = [topic for topic in self._options.topics if owner(topic) == server]
            found = {topic: _head(client, topic) for topic in mine}
        return {topic: head for topic, head in found.items() if head is not None}

    def require(self, heads: Heads) -> None:
        """Raise `ServerError` for a topic that is named and absent, `BadOption` for offsets of a
        partition that a topic does not have.
        """
        for topic in self._options.topics:
            server = self._connection.servers.owner(topic)
            if topic not in heads[server.name]:
                raise ServerError(
                    f'server {label(server)}: topic "{topic}": topic_not_found: there is no such'
                    " topic; make it first, or correct the option subscribe"
                )
        index = self._connection.servers.index
        for bounds in (self._options.starting, self._options.ending):
            for topic in bounds.named:
                if places := [index(server) for server, found in heads.items() if topic in found]:
                    bounds.check(topic, places)

    def loss(self, step: Step, patience: Patience) -> Lost | None:
        """What was evicted or expired right behind a position; None without any."""
        server = self._connection.server(step.server)
        client = self._client(server, patience)
        at = step.at
        with errors_of(server):
            page = client.diff(step.topic, from_seq=at.seq, limit=1, epoch=at.epoch)
        gone = page.tombstone
        if gone is None or page.epoch != at.epoch:
            return None
        return Lost(gone.gap_from, gone.gap_to, gone.reason, gone.missed_estimate)

    def latest(self, server: Server, topic: str, head: Head, count: int) -> list[Record]:
        """The last records, about so many."""
        client = self._client(server, Patience.PLANNING)
        with errors_of(server):
            return client.diff(
                topic, from_seq=max(head.earliest - 1, head.head - count), limit=count
            ).records

    def seq_before(self, server: Server, topic: str, head: Head, ts: int) -> int:
        """A seq with all records before ``ts`` up to it and all others behind it.

        ``$ts`` never goes back within a topic, so a binary search finds it.
        """
        client = self._client(server, Patience.PLANNING)
        low, high = head.earliest - 1, head.head
        with errors_of(server):
            while low < high:
                middle = (low + high) // 2
                page = client.diff(
                    topic, from_seq=middle, limit=1, epoch=head.epoch, tags=False, meta=False
                )
                record = page.records[0] if page.records else None
                if record is None or record.ts >= ts:
                    high = middle
                else:
                    low = max(middle + 1, min(record.seq, high))
        return low

    def _matching(self, client: TopicsClient) -> dict[str, Head]:
        found: dict[str, Head] = {}
        for one in client.listing(self._options.prefix):
            if not self._options.wants(one.topic):
                continue
            if one.epoch is None:  # a server of an earlier version
                head = _head(client, one.topic)
            else:
                head = Head(one.earliest_seq, one.head_seq, one.epoch)
            if head is not None:
                found[one.topic] = head
        return found

    def _client(self, server: Server, patience: Patience) -> TopicsClient:
        found = self._clients.get((server.name, patience))
        if found is None:
            found = _client(self._connection, server, patience)
            self._clients[server.name, patience] = found
        return found


def _client(connection: Connection, server: Server, patience: Patience) -> TopicsClient:
    if patience is not Patience.QUICK:
        return connection.client(server, quick=patience is Patience.PLANNING)
    target = connection.target(server, retries=min(QUICK_RETRIES, connection.retries))
    return TopicsClient(
        replace(
            target,
            connect_s=min(QUICK_CONNECT_S, target.connect_s),
            read_s=min(QUICK_READ_S, target.read_s),
            retry_after_max_s=1,
        )
    )


def _head(client: TopicsClient, topic: str) -> Head | None:
    state = client.state(topic)
    if state is None:
        return None
    try:
        return Head(int(state["earliest_seq"]), int(state["head_seq"]), int(state["epoch"]))
    except (KeyError, TypeError, ValueError):
        raise RequestError(topic, 200, "bad_answer", "its state has no epoch") from None

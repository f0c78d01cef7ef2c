"""Survey: what the servers hold now. The driver's side of reads; executors have none.

Topics of a pattern are listed, a thousand in a request, and so are many named ones; few are asked
for their states. A named topic is looked for on all servers once, then on the server that has it; a
topic on two servers is refused. Connections are kept, so that a stream asks again at the cost of a
round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import NoReturn

from topics.spark.client.http import LIST_SIZE, Page, TopicsClient
from topics.spark.client.ranges import Lost
from topics.spark.client.request_error import RequestError
from topics.spark.client.servers import Server
from topics.spark.job_errors import warn
from topics.spark.source.connection import (
    BadOption,
    RetryBudget,
    ServerError,
    errors_of,
    label,
    on_two_servers,
)
from topics.spark.source.offsets import Bounds
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import DataLost, Head, Heads, Step, bound

STATES_A_PAGE = 20  # about as many states of topics cost what a page of the list does


class Survey:
    """Asks the servers of a read. Not for several threads, not picklable; to be closed."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = options.connection
        self._clients: dict[tuple[str, RetryBudget], TopicsClient] = {}
        self._places: dict[str, Server] = {}  # of named topics
        self._asked: set[Server] = set()  # for all named topics
        self._crowded: set[Server] = set()  # too many topics lie between the named ones

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    @property
    def servers(self) -> tuple[Server, ...]:
        """All of them: any may have a wanted topic."""
        return self._connection.servers.members

    def heads(self, budget: RetryBudget) -> Heads:
        """What all of them hold. Raises `ServerError` of the first that does not answer."""
        return {server.name: self.heads_of(server, budget) for server in self.servers}

    def heads_of(self, server: Server, budget: RetryBudget) -> dict[str, Head]:
        """What the server holds of the wanted topics; one that is absent is left out. Raises
        `ServerError`, or `RequestError` for a named topic that another server has, too.
        """
        client = self._client(server, budget)
        with errors_of(server):
            if self._options.pattern is not None:
                return _heads(client, self._options.prefix, self._options.wants)[0]
            sought = self._sought(server)
            found = self._named(client, server, sought)
        self._asked.add(server)
        for topic in sought:
            if topic not in found:
                if self._places.get(topic) == server:
                    del self._places[topic]
            elif (place := self._places.setdefault(topic, server)) != server:
                raise on_two_servers(topic, place, server)
        return found

    def exists(self, server: str, topic: str, budget: RetryBudget) -> bool:
        """Return whether the server has the topic. Raises `ServerError`, also if the key may not
        read it: a list leaves out such topics as if they were deleted.
        """
        found = self._connection.server(server)
        with errors_of(found):
            return self._client(found, budget).state(topic) is not None

    def _named(
        self, client: TopicsClient, server: Server, sought: Sequence[str]
    ) -> dict[str, Head]:
        found: dict[str, Head] = {}
        if len(sought) >= STATES_A_PAGE and server not in self._crowded:
            most = len(sought) * LIST_SIZE // STATES_A_PAGE
            wanted = set(sought).__contains__
            prefix = commonprefix(sought)  # noqa: RUF071 - of characters
            found, complete = _heads(client, prefix, wanted, most)
            if complete:
                return found
            self._crowded.add(server)
        states = {topic: found.get(topic) or _head(client, topic) for topic in sought}
        return {topic: head for topic, head in states.items() if head is not None}

    def _sought(self, server: Server) -> list[str]:
        """The named topics that the server may have."""
        topics, places = self._options.topics, self._places
        if server not in self._asked:
            return [*topics]
        return [topic for topic in topics if places.get(topic, server) == server]

    def required(self) -> Iterator[tuple[Server, str, Head]]:
        """What they hold, at the start of a query. Raises `ServerError` for a topic that is named
        and absent, `BadOption` for offsets of a topic that is not there, or of a partition that it
        does not have.
        """
        heads = self.heads(RetryBudget.PLANNING)
        for topic in self._options.topics:
            if not any(topic in found for found in heads.values()):
                self._refuse(topic)
        index = self._connection.servers.index
        for bounds in (self._options.starting, self._options.ending):
            for topic in bounds.named:
                places = [index(server) for server, found in heads.items() if topic in found]
                if not places:
                    raise BadOption(f'option {bounds.option} names topic "{topic}": there is none')
                bounds.check(topic, places)
        for server in self.servers:
            for topic, head in heads[server.name].items():
                yield server, topic, head

    def _refuse(self, topic: str) -> NoReturn:
        """Raise `ServerError` for a topic that was not found: a key that may not see it is told."""
        for server in self.servers:
            with errors_of(server):
                self._client(server, RetryBudget.PLANNING).state(topic)
        raise ServerError(
            f'server {", ".join(map(label, self.servers))}: topic "{topic}": topic_not_found: there'
            " is no such topic; make it first, or correct the option subscribe"
        )

    def bound(self, bounds: Bounds, server: Server, topic: str, head: Head) -> int:
        """The seq before a bound: exclusive start or inclusive end. Beyond the end, it raises
        `DataLost`, or warns and is the head.
        """
        index = self._connection.servers.index(server.name)
        if bounds.by_time and (ts := bounds.of(topic, index)) >= 0:
            return self.seq_before(server, topic, head, ts)
        try:
            return bound(bounds, topic, index, head)
        except DataLost as error:
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{error}: was it deleted and made again? Give failOnDataLoss=false to read"
                    " what is there"
                ) from error
            warn(str(error))
            return head.head

    def loss(self, step: Step, budget: RetryBudget) -> Lost | None:
        """What was evicted or expired right behind a position; None without any."""
        page = self._page(step, step.at.seq, budget)
        if page is None or (gone := page.tombstone) is None:
            return None
        return Lost(gone.gap_from, gone.gap_to, gone.reason, gone.missed_estimate)

    def connections(self, server: str, budget: RetryBudget) -> int:
        """How often the server was connected to so far."""
        return self._client(self._connection.server(server), budget).connections

    def rewound(self, step: Step, budget: RetryBudget) -> int | None:
        """The seq up to which the log is the one that the position was made of; None when all of it
        is, or when that cannot be told.

        The position has the head of its time and the head's `$ts`, and `$ts` never goes back within
        a log. So a record up to that head that is younger belongs to another log: the server was
        restored from a backup and has grown since. A head that is lower tells the same.
        """
        at, server = step.at, self._connection.server(step.server)
        last = max(at.seq, at.head)
        page = self._page(step, last - 1, budget)
        if page is None:
            return None
        if not at.head_ts:
            return page.head_seq if page.head_seq < last else None
        first = page.records[0] if page.records else None
        if first is not None and (first.seq, first.ts) == (last, at.head_ts):
            return None
        head = Head(page.earliest_seq, page.head_seq, page.epoch)
        seq = self.seq_before(server, step.topic, head, at.head_ts + 1)
        if page.head_seq >= last and not self._is_record_in(step, seq, last, budget):
            return None  # that record was deleted or evicted meanwhile
        return min(seq, last - 1)

    def _is_record_in(self, step: Step, after: int, last: int, budget: RetryBudget) -> bool:
        page = self._page(step, after, budget)
        return page is not None and bool(page.records) and page.records[0].seq <= last

    def _page(self, step: Step, after: int, budget: RetryBudget) -> Page | None:
        """One record behind a seq, or what is told of its loss; None when the topic is gone or was
        made again.
        """
        server, epoch = self._connection.server(step.server), step.at.epoch
        client = self._client(server, budget)
        with errors_of(server):
            try:
                page = client.diff(
                    step.topic, from_seq=after, limit=1, epoch=epoch, tags=False, meta=False
                )
            except RequestError as error:
                if error.code != "topic_not_found":
                    raise
                return None
        return page if page.epoch == epoch else None

    def seq_before(self, server: Server, topic: str, head: Head, ts: int) -> int:
        """A seq with all records before ``ts`` up to it and all others behind it.

        ``$ts`` never goes back within a topic, so a binary search finds it.
        """
        if 0 < head.ts < ts:
            return head.head
        client = self._client(server, RetryBudget.PLANNING)
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

    def _client(self, server: Server, budget: RetryBudget) -> TopicsClient:
        found = self._clients.get((server.name, budget))
        if found is None:
            found = self._connection.client(server, budget)
            self._clients[server.name, budget] = found
        return found


def _heads(
    client: TopicsClient, prefix: str, wanted: Callable[[str], bool], most: int | None = None
) -> tuple[dict[str, Head], bool]:
    """The wanted ones of the first ``most`` topics with this prefix, and whether that is all."""
    listing = iter(client.listing(prefix))
    found = {
        one.topic: Head(one.earliest_seq, one.head_seq, one.epoch, one.last_write_ts or 0)
        for one in islice(listing, most)
        if wanted(one.topic)
    }
    return found, next(listing, None) is None


def _head(client: TopicsClient, topic: str) -> Head | None:
    state = client.state(topic)
    if state is None:
        return None
    try:
        ts = int(state.get("last_write_ts") or 0)
        return Head(int(state["earliest_seq"]), int(state["head_seq"]), int(state["epoch"]), ts)
    except (KeyError, TypeError, ValueError):
        raise RequestError(topic, 200, "bad_answer", "its state has no epoch") from None

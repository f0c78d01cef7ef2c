"""Survey: the state of the topics on the servers. The driver uses it to plan reads.

The topics that match a pattern, or many named topics, are listed with 1,000 topics in each
response. The states of a few named topics are requested one by one. All servers are searched for a
named topic, which is then read from the server that has it. A topic that is on two servers is
refused. The connections stay open, so a stream's poll costs one round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from os.path import commonprefix
from typing import NoReturn

from topics.client.values import TopicInfo, TopicState
from topics.spark.client.http import LIST_SIZE, Page, RequestError, TopicsClient
from topics.spark.client.ranges import Loss
from topics.spark.client.servers import Server
from topics.spark.job_errors import warn
from topics.spark.source.connection import (
    BadOption,
    Clients,
    RetryBudget,
    ServerError,
    errors_of,
    label,
    on_two_servers,
)
from topics.spark.source.offsets import EARLIEST, LATEST, Bounds, seq_before
from topics.spark.source.options import ReadOptions, literal_prefix
from topics.spark.source.plan import DataLost, Head, Heads, Step

STATES_A_PAGE = 20  # number of state requests that cost as much as one list page


class Survey:
    """Requests the state of topics. Not thread-safe, not picklable. The caller must close it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = options.connection
        self.servers = options.connection.servers.members
        self._clients = Clients(options.connection)
        self._locations: dict[str, Server] = {}  # the servers of named topics
        self._searched: set[Server] = set()  # servers that were searched for all named topics
        self._unlisted: set[Server] = set()  # servers whose lists have too many other topics

    def close(self) -> None:
        """Close all connections."""
        self._clients.close()

    def heads(self, budget: RetryBudget) -> Heads:
        """Return the heads on all servers. Raise `ServerError` if one of them does not reply."""
        return {server.name: self.heads_of(server, budget) for server in self.servers}

    def heads_of(self, server: Server, budget: RetryBudget) -> dict[str, Head]:
        """Return the heads of the subscribed topics that the server has. Raise `ServerError`, or
        `RequestError` for a named topic that another server also has.
        """
        client = self._clients.of(server, budget)
        with errors_of(server):
            if (pattern := self._options.pattern) is not None:
                return _listed(client, literal_prefix(pattern), self._options.wants)[0]
            names = self._possible(server)
            found = self._named(client, server, names)
        self._searched.add(server)
        for topic in names:
            if topic not in found:
                if self._locations.get(topic) == server:
                    del self._locations[topic]
            elif (location := self._locations.setdefault(topic, server)) != server:
                raise on_two_servers(topic, location, server)
        return found

    def exists(self, server: str, topic: str, budget: RetryBudget) -> bool:
        """Return whether the server has the topic. Raise `ServerError`. This is also raised if the
        key may not read the topic, because a list omits such a topic as if it were deleted.
        """
        found = self._connection.server(server)
        with errors_of(found):
            return self._clients.of(found, budget).state(topic) is not None

    def _named(self, client: TopicsClient, server: Server, names: Sequence[str]) -> dict[str, Head]:
        found: dict[str, Head] = {}
        if len(names) >= STATES_A_PAGE and server not in self._unlisted:
            most = len(names) * LIST_SIZE // STATES_A_PAGE
            prefix = commonprefix(names)  # noqa: RUF071 - the names are not paths
            found, is_complete = _listed(client, prefix, set(names).__contains__, most)
            if is_complete:
                return found
            self._unlisted.add(server)
        for topic in names:
            if topic not in found and (state := client.state(topic)) is not None:
                found[topic] = _head(state)
        return found

    def _possible(self, server: Server) -> list[str]:
        """Return the named topics that the server may have."""
        topics, locations = self._options.topics, self._locations
        if server not in self._searched:
            return [*topics]
        return [topic for topic in topics if locations.get(topic, server) == server]

    def required(self) -> Iterator[tuple[Server, str, Head]]:
        """Yield the heads at the start of a query. Raise `ServerError` for a named topic that no
        server has, `BadOption` for offsets of a topic that no server has, or of a partition that
        the topic does not have.
        """
        heads = self.heads(RetryBudget.PLANNING)
        for topic in self._options.topics:
            if not any(topic in found for found in heads.values()):
                self._refuse(topic)
        index = self._connection.servers.index
        for bounds in (self._options.starting, self._options.ending, self._options.assigned):
            for topic in bounds.named:
                partitions = [index(server) for server, found in heads.items() if topic in found]
                if not partitions:
                    raise BadOption(
                        f'option {bounds.option} names topic "{topic}", which does not exist'
                    )
                bounds.check(topic, partitions)
        for server in self.servers:
            for topic, head in heads[server.name].items():
                yield server, topic, head

    def _refuse(self, topic: str) -> NoReturn:
        """Raise `ServerError` for a named topic that no server has or that the key may not read."""
        for server in self.servers:
            with errors_of(server):
                self._clients.of(server, RetryBudget.PLANNING).state(topic)
        raise ServerError(
            f'server {", ".join(map(label, self.servers))}: topic "{topic}": topic_not_found:'
            " there is no such topic; create it first, or correct the option subscribe"
        )

    def bound(self, bounds: Bounds, server: Server, topic: str, head: Head) -> int:
        """Return the seq before a bound, which is an exclusive start or an inclusive end. For a
        bound above the end, raise `DataLost`, or warn and return the head.
        """
        offset = bounds.of(topic, self._connection.servers.index(server.name))
        if offset == LATEST:
            return head.head
        if offset == EARLIEST:
            return head.earliest - 1
        if bounds.by_time:
            return self.seq_before(server, topic, head, offset)
        if offset <= head.head + 1:
            return seq_before(offset)
        text = (
            f'option {bounds.option} has offset {offset} for topic "{topic}", which ends at'
            f" {head.head + 1}"
        )
        if self._options.fail_on_data_loss:
            raise DataLost(
                f"{text}: was it deleted and created again? Set failOnDataLoss=false to read the"
                " existing records"
            )
        warn(text)
        return head.head

    def loss_after(self, step: Step, budget: RetryBudget) -> Loss | None:
        """Return the records that were evicted or expired directly after a position, or None."""
        page = self._page(step, step.at.seq, budget)
        if page is None or (gap := page.tombstone) is None:
            return None
        return Loss(gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate)

    def large_losses(self, step: Step, last: int, budget: RetryBudget) -> Iterator[Loss]:
        """Yield the losses between a position and ``last`` that span several tasks.

        Hundreds of millions of seqs may be missing after a standby is promoted, so only one seq in
        each task's range is checked. The part of a loss up to that seq is reported by the task that
        reads it.
        """
        size, seq = self._options.max_records_per_partition, step.at.seq
        while (seq := seq + size) < last:
            loss = self.loss_after(step._replace(at=step.at._replace(seq=seq)), budget)
            if loss is not None and loss.first == seq + 1:
                seq = min(loss.last, last)
                yield loss._replace(last=seq, estimate=min(loss.estimate, seq + 1 - loss.first))

    def connections(self, server: str, budget: RetryBudget) -> int:
        """Return the number of connections that have been opened to the server."""
        return self._clients.of(self._connection.server(server), budget).connections

    def common_end(self, step: Step, budget: RetryBudget) -> int | None:
        """Return the last seq that the log has in common with the log that was read. Return None if
        the logs are the same up to the position's head, or cannot be compared.

        A position contains the topic's head when the position was created, and the head's `$ts`,
        which never decreases within a log. If the head is lower now, or if a record up to the
        position's head is newer than this `$ts`, the server was restored from a backup and may have
        grown since.
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
        if page.head_seq >= last:
            younger = self._page(step, seq, budget)
            if younger is None or not younger.records or younger.records[0].seq > last:
                return None  # the record at the position's head was deleted or evicted
        return min(seq, last - 1)

    def _page(self, step: Step, after: int, budget: RetryBudget) -> Page | None:
        """Return a page with the next record after a seq, or None if the topic was deleted or
        recreated.
        """
        server, epoch = self._connection.server(step.server), step.at.epoch
        client = self._clients.of(server, budget)
        with errors_of(server):
            try:
                page = _next(client, step.topic, after, epoch)
            except RequestError as error:
                if error.code != "topic_not_found":
                    raise
                return None
        return page if page.epoch == epoch else None

    def seq_before(self, server: Server, topic: str, head: Head, ts: int) -> int:
        """Return a seq that separates the records before ``ts`` from the others. `$ts` never
        decreases within a topic, so a binary search finds it.
        """
        if 0 < head.ts < ts:
            return head.head
        client = self._clients.of(server, RetryBudget.PLANNING)
        low, high = head.earliest - 1, head.head
        with errors_of(server):
            while low < high:
                middle = (low + high) // 2
                page = _next(client, topic, middle, head.epoch)
                record = page.records[0] if page.records else None
                if record is None or record.ts >= ts:
                    high = middle
                else:
                    low = max(middle + 1, min(record.seq, high))
        return low


def _listed(
    client: TopicsClient, prefix: str, wants: Callable[[str], bool], most: int | None = None
) -> tuple[dict[str, Head], bool]:
    """Return the subscribed topics among the first ``most`` topics with a prefix, and whether the
    list was read to its end.
    """
    listing = iter(client.listing(prefix))
    found = {each.name: _head(each) for each in islice(listing, most) if wants(each.name)}
    return found, next(listing, None) is None


def _next(client: TopicsClient, topic: str, after: int, epoch: int) -> Page:
    """Return a page with the next record after a seq."""
    fields = {"epoch": epoch, "include_tags": False, "include_meta": False}
    return client.diff(topic, from_seq=after, limit=1, **fields)


def _head(topic: TopicInfo | TopicState) -> Head:
    return Head(topic.earliest_seq, topic.head_seq, topic.epoch, topic.last_write_ts or 0)

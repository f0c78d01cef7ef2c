"""Stream reader: plans the batches of a streaming query, in one process on the driver.

    initialOffset   the start of a new query
    latestOffset    polls the servers and returns the end of the next batch
    partitions      the ranges between two offsets; it sends no request, so that a batch that Spark
                    repeats after a crash reads the same records
    read            runs on an executor

If a server does not reply to a poll, it keeps its offsets for this batch, and the batch reads from
the other servers. All retries are used if there is only one server, and for the requests at the
start of a query.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topics.spark.client.ranges import DELETED, Loss
from topics.spark.job_errors import LOSS_ADVICE, warn
from topics.spark.source import plan
from topics.spark.source.columns import Columns
from topics.spark.source.connection import RetryBudget, ServerError
from topics.spark.source.offsets import Offsets, Position, decode, encode
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import REWOUND, DataLost, Heads, Step
from topics.spark.source.reading import partitions_of, read_partition, report
from topics.spark.source.survey import Survey

IDLE_S = 0.05  # between two polls of topics without new records


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query. It is pickled for the executors, without its connections."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self.options = options
        self.columns = columns
        self._clock: Callable[[], float] = time.monotonic
        self._sleep: Callable[[float], None] = time.sleep
        self._survey = Survey(options)  # opens each connection when it is first used
        self._heads: Heads = {}  # the heads at the last poll of each server
        self._target: Heads | None = None  # the end of a query with the trigger availableNow
        self._advanced_at = self._clock()
        self._unavailable: set[str] = set()  # servers for which a warning has been written
        self._reported: dict[tuple[str, str], Loss] = {}  # the last loss of each topic
        # The number of the connection over which a server was last polled, and the number of the
        # connection over which the log of a topic was last compared with the topic's position.
        self._polled_on: dict[str, int] = {}
        self._compared_on: dict[tuple[str, str], int] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self.options, self.columns)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return the start of a query that has no checkpoint."""
        survey = self._survey
        found: Offsets = {server.name: {} for server in survey.servers}
        for server, topic, head in survey.required():
            seq = survey.bound(self.options.starting, server, topic, head)
            found[server.name][topic] = Position(seq, head.epoch, 0, head.head, head.ts)
        return encode(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of each batch."""
        limit = self.options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` if there are too few new records."""
        begin = decode(start)
        before = dict(self._heads)
        self._check_servers(begin)
        heads = self._poll() if self._target is None else self._target
        for server, topics in heads.items():
            # An absent topic keeps its earlier head while it has a position.
            earlier = before.get(server, {})
            known = earlier.keys() & begin.get(server, {}).keys()
            self._heads[server] = {topic: earlier[topic] for topic in known} | topics
        kept, absent = plan.split_absent(begin, heads, self.options.wants)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        found = [
            self._checked(step, heads, rows)
            for step in plan.steps(kept, heads, before, self._report)
        ]
        if self._is_below_minimum(found):
            return self._idle(start)
        for server, positions in absent.items():
            for topic, at in positions.items():
                if not self._is_deleted(server, topic, at, before):
                    kept[server][topic] = at
        end = plan.advance(kept, found, rows)
        if end == begin:
            return self._idle(start)
        self._advanced_at = self._clock()
        return encode(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of all topics at the last poll, for the query's progress (`lag`)."""
        ends = {
            server: {topic: Position(head.head, head.epoch) for topic, head in topics.items()}
            for server, topics in self._heads.items()
        }
        return encode(ends) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the end of the query to the current heads."""
        self._target = self._survey.heads(RetryBudget.FULL)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch."""
        return partitions_of(plan.ranges_between(decode(start), decode(end)), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition."""
        return read_partition(partition, self.options, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint contains the offsets."""

    def stop(self) -> None:
        """Close the connections."""
        self._survey.close()

    @property
    def _budget(self) -> RetryBudget:
        """`FULL` if there is only one server or the query has a fixed end, otherwise `QUICK`."""
        is_required = len(self._survey.servers) == 1 or self._target is not None
        return RetryBudget.FULL if is_required else RetryBudget.QUICK

    def _poll(self) -> Heads:
        """Return the heads of the servers that reply."""
        survey, budget = self._survey, self._budget
        found: Heads = {}
        for server in survey.servers:
            before = survey.connections(server.name, budget)
            try:
                found[server.name] = survey.heads_of(server, budget)
            except ServerError as error:
                self._skip_server(server.name, error)
            else:
                self._polled_on[server.name] = before
                self._unavailable.discard(server.name)
        return found

    def _skip_server(self, server: str, error: ServerError) -> None:
        """Raise the error if the server is required. Otherwise, warn once."""
        if self._budget is RetryBudget.FULL:
            raise error
        if server not in self._unavailable:
            warn(f"{error}; the query continues with the other servers")
        self._unavailable.add(server)

    def _is_deleted(self, server: str, topic: str, at: Position, before: Heads) -> bool:
        """Return whether an absent topic of a pattern is deleted, so that its position is dropped.

        Its known unread records are reported as lost first. Records that were appended after the
        last poll and deleted with the topic are not known. A topic that is recreated later is new
        and is read from its earliest record. So is a topic that exists again because its server was
        restored from a backup that is older than the deletion: its records are read again.
        """
        try:
            if self._survey.exists(server, topic, self._budget):
                return False  # recreated after the poll: the next one reports it
        except ServerError as error:
            self._skip_server(server, error)
            return False
        loss = plan.unread(server, topic, at, before, DELETED)
        if loss.estimate:
            self._report(server, topic, loss)
        self._reported.pop((server, topic), None)
        self._compared_on.pop((server, topic), None)
        return True

    def _checked(self, step: Step, heads: Heads, rows: int | None) -> Step:
        """Return the step without lost records. It is empty if its server no longer replies."""
        try:
            return self._skip_losses(self._compare_log(step, heads), rows)
        except ServerError as error:
            self._skip_server(step.server, error)
            return step._replace(head=step.at.seq)

    def _compare_log(self, step: Step, heads: Heads) -> Step:
        """Return the step, rewound if its server was restored and the log differs from the log that
        was read.

        The log is compared at the start of a query and after each reconnection, because a server
        cannot be restored while a connection stays open. An unchanged head needs no request.
        """
        survey, budget, at = self._survey, self._budget, step.at
        last = max(at.seq, at.head)
        if last == 0 or step.topic not in heads[step.server]:
            return step
        key, on = (step.server, step.topic), survey.connections(step.server, budget)
        if (step.head, step.ts) == (last, at.head_ts):
            if self._polled_on.get(step.server) == on:
                self._compared_on[key] = on
            return step
        is_compared = at.head_ts == 0 or self._compared_on.get(key) == on
        if is_compared and step.head >= last:
            return step
        seq = survey.common_end(step, budget)
        self._compared_on[key] = on
        if seq is None:
            return step._replace(head=max(step.head, at.seq))
        step = plan.rewind(step, seq)
        self._report(*key, Loss(seq + 1, last, REWOUND, step.at.lost - at.lost))
        return step

    def _skip_losses(self, step: Step, rows: int | None) -> Step:
        """Return the step with its start moved past records that were lost before they could be
        read, and its end before the next large loss, which the next batch skips.
        """
        head = self._heads[step.server].get(step.topic)
        if head is None or step.lag == 0:
            return step
        survey, size = self._survey, self.options.max_records_per_partition
        if head.earliest > step.at.seq + 1 or step.lag > size:
            loss = survey.loss_after(step, self._budget)
            if loss is not None:
                self._report(step.server, step.topic, loss)
                step = plan.skip(step, loss)
        last = step.at.seq + (step.lag if rows is None else min(step.lag, rows))
        loss = next(survey.large_losses(step, last, self._budget), None)
        return step if loss is None else step._replace(end=loss.first - 1)

    def _check_servers(self, begin: Offsets) -> None:
        """Refuse a checkpoint that contains a server which is not listed in the option ``servers``.
        If a server had a different name, all its topics would be read again from their start.
        """
        names = [server.name for server in self.options.connection.servers.members]
        for server in sorted(begin.keys() - names - self._unavailable):
            text = (
                f'the checkpoint has offsets of server "{server}", and servers names only'
                f" {', '.join(names)}; a server that moved keeps its name: {server}=URL"
            )
            if self.options.fail_on_data_loss:
                raise DataLost(f"{text} ({LOSS_ADVICE})")
            warn(text)
            self._unavailable.add(server)

    def _idle(self, start: dict[str, Any]) -> dict[str, Any]:
        """Return ``start``. Spark polls again immediately, so a pause limits the requests."""
        if self._target is None:
            self._sleep(IDLE_S)
        return start

    def _is_below_minimum(self, found: list[Step]) -> bool:
        """Return whether ``minOffsetsPerTrigger`` makes the batch wait for more records."""
        if self._target is not None or self.options.min_offsets == 0:
            return False
        late = self._clock() - self._advanced_at >= self.options.max_delay_s
        return sum(step.lag for step in found) < self.options.min_offsets and not late

    def _report(self, server: str, topic: str, loss: Loss) -> None:
        """Raise `DataLost`, or warn once about each loss."""
        if self.options.fail_on_data_loss or self._reported.get((server, topic)) != loss:
            report(self.options, server, topic, loss)
        self._reported[server, topic] = loss

"""Stream read: batches between two offsets, planned in one process on the driver.

    initialOffset   where a new query begins
    latestOffset    asks the servers, and says how far the next batch goes
    partitions      the ranges between two offsets; asks nobody, so a batch that is repeated after a
                    crash reads the same
    read            an executor's part

A server that does not answer keeps its offsets for this batch and the others go on. Where there are
no others, and for what a query must know at its start, all retries are awaited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from topics.spark.client.ranges import GONE, Lost
from topics.spark.job_errors import warn
from topics.spark.source.columns import Columns
from topics.spark.source.connection import RetryBudget, ServerError
from topics.spark.source.offsets import Offsets, Position, decode, encode
from topics.spark.source.options import ReadOptions
from topics.spark.source.plan import (
    GO_ON,
    REWOUND,
    DataLost,
    Head,
    Heads,
    Step,
    advance,
    between,
    positions,
    rewind,
    skip,
    split_absent,
    steps,
    unread,
)
from topics.spark.source.reading import partitions_of, read_partition, report
from topics.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa


IDLE_S = 0.05  # between two looks at topics where nothing comes


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of one query. Pickled for the executors, without its connections."""

    def __init__(
        self,
        options: ReadOptions,
        columns: Columns,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.columns = columns
        self._clock, self._sleep = clock, sleep
        self._survey: Survey | None = None
        self._heads: Heads = {}  # as last heard of each server
        self._target: Heads | None = None  # of a query that ends with what is there now
        self._moved_at = clock()
        self._silent: set[str] = set()
        self._told: dict[tuple[str, str], Lost] = {}  # the last loss of each topic
        # By server: on which connection all of it was heard. By topic: on which connection the
        # server's log had its position last.
        self._heard_on: dict[str, int] = {}
        self._found_on: dict[tuple[str, str], int] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "columns": self.columns}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"], state["columns"])  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Where a query without a checkpoint begins."""
        survey = self._surveyor()
        found: Offsets = {server.name: {} for server in survey.servers}
        for server, topic, head in survey.required():
            seq = survey.bound(self.options.starting, server, topic, head)
            found[server.name][topic] = Position(seq, head.epoch, 0, head.head, head.ts)
        return encode(found)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of each batch."""
        limit = self.options.max_offsets
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes; ``start`` again when there is nothing to read, or not yet
        enough.
        """
        begin = decode(start)
        before = self._heads
        self._check_servers(begin)
        heads = self._look() if self._target is None else self._target
        # The earlier heads of absent topics remain only while the topics have positions.
        self._heads = before | {
            server: {
                topic: head
                for topic, head in before.get(server, {}).items()
                if topic in begin.get(server, {})
            }
            | topics
            for server, topics in heads.items()
        }
        kept, absent = split_absent(begin, heads, self.options.wants)
        found = [
            self._past_losses(self._in_its_log(step, heads))
            for step in steps(kept, heads, before, self._report)
        ]
        if self._waits(found):
            return self._idle(start)
        for server, topics in absent.items():
            for topic, at in topics.items():
                if not self._is_deleted(server, topic, at, before.get(server, {}).get(topic)):
                    kept[server][topic] = at
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = advance(kept, found, rows)
        if end == begin:
            return self._idle(start)
        self._moved_at = self._clock()
        return encode(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The ends of all topics as last heard of: progress shows them beside the batch's end."""
        return encode(positions(self._heads)) or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query: what is there now."""
        survey = self._surveyor()
        self._target = survey.heads(RetryBudget.FULL)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a batch."""
        return partitions_of(between(decode(start), decode(end)), self.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task."""
        return read_partition(partition, self.options, self.columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: offsets are in the checkpoint."""

    def stop(self) -> None:
        """Close the connections."""
        if self._survey is not None:
            self._survey.close()
            self._survey = None

    def _surveyor(self) -> Survey:
        if self._survey is None:
            self._survey = Survey(self.options)
        return self._survey

    @property
    def _budget(self) -> RetryBudget:
        """Others go on without a server that does not answer, if there are any."""
        alone = len(self._surveyor().servers) == 1 or self._target is not None
        return RetryBudget.FULL if alone else RetryBudget.QUICK

    def _look(self) -> Heads:
        """What the servers hold that answer."""
        survey, budget = self._surveyor(), self._budget
        found: Heads = {}
        for server in survey.servers:
            before = survey.connections(server.name, budget)
            try:
                found[server.name] = survey.heads_of(server, budget)
            except ServerError as error:
                if budget is RetryBudget.FULL:
                    raise
                self._note_silence(server.name, error)
            else:
                self._heard_on[server.name] = before
                self._silent.discard(server.name)
        return found

    def _note_silence(self, server: str, error: ServerError) -> None:
        """Warn once for each time that a server stops answering."""
        if server not in self._silent:
            warn(f"{error}; the other servers go on, it keeps its offsets until it answers")
        self._silent.add(server)

    def _is_deleted(self, server: str, topic: str, at: Position, head: Head | None) -> bool:
        """Return whether an absent topic of a pattern is deleted, so that its position is dropped.

        Its known unread records are reported as lost first. Records that were appended after the
        last poll and deleted with the topic are not known. A topic that is recreated later is new
        and is read from its earliest record. So is a topic that exists again because its server was
        restored from a backup that is older than the deletion: its records are read again.
        """
        try:
            if self._surveyor().exists(server, topic, self._budget):
                return False  # recreated after the poll: the next one reports it
        except ServerError as error:
            if self._budget is RetryBudget.FULL:
                raise
            self._note_silence(server, error)
            return False
        if count := unread(at, head):
            self._report(server, topic, Lost(at.seq + 1, at.seq + count, GONE, count))
        self._told.pop((server, topic), None)
        self._found_on.pop((server, topic), None)
        return True

    def _in_its_log(self, step: Step, heads: Heads) -> Step:
        """The step, back where the log of a restored server leaves the one that was read.

        The log is compared at the start, and whenever the server was connected to again: no server
        is restored without that. A head that has not changed tells it without a request.
        """
        survey, budget, at = self._surveyor(), self._budget, step.at
        last = max(at.seq, at.head)
        if last == 0 or step.topic not in heads[step.server]:
            return step
        on = survey.connections(step.server, budget)
        if (step.head, step.ts) == (last, at.head_ts):
            if self._heard_on.get(step.server) == on:
                self._found_on[step.server, step.topic] = on
            return step
        is_found = at.head_ts == 0 or self._found_on.get((step.server, step.topic)) == on
        if is_found and step.head >= last:
            return step
        try:
            seq = survey.rewound(step, budget)
        except ServerError as error:
            return self._without(step, error)
        self._found_on[step.server, step.topic] = on
        if seq is None:
            return step._replace(head=max(step.head, at.seq))
        step = rewind(step, seq)
        lost = step.at.lost - at.lost
        self._report(step.server, step.topic, Lost(seq + 1, last, REWOUND, lost))
        return step

    def _past_losses(self, step: Step) -> Step:
        """The step beyond what was evicted or expired before it could be read."""
        head = self._heads[step.server].get(step.topic)
        if head is None or head.earliest <= step.at.seq + 1 or step.lag == 0:
            return step
        try:
            lost = self._surveyor().loss(step, self._budget)
        except ServerError as error:
            return self._without(step, error)
        if lost is None:
            return step
        self._report(step.server, step.topic, lost)
        return skip(step, lost)

    def _without(self, step: Step, error: ServerError) -> Step:
        """The step when its server has stopped to answer: it waits, if others go on."""
        if self._budget is RetryBudget.FULL:
            raise error
        self._note_silence(step.server, error)
        return step._replace(head=step.at.seq)

    def _check_servers(self, begin: Offsets) -> None:
        """A server's name is its identity: under another name, all its topics would be read again
        from their beginning.
        """
        names = [server.name for server in self.options.connection.servers.members]
        for server in begin:
            if server not in names:
                text = (
                    f'the checkpoint has offsets of server "{server}", and servers names only'
                    f" {', '.join(names)}; a server that moved keeps its name: {server}=URL"
                )
                if self.options.fail_on_data_loss:
                    raise DataLost(f"{text} ({GO_ON})")
                if server not in self._silent:
                    warn(text)
                self._silent.add(server)

    def _idle(self, start: dict[str, Any]) -> dict[str, Any]:
        """Nothing for now. Spark asks again at once, so a short pause spares the servers."""
        if self._target is None:
            self._sleep(IDLE_S)
        return start

    def _waits(self, found: list[Step]) -> bool:
        """Whether there is too little to read for now."""
        if self._target is not None or self.options.min_offsets == 0:
            return False
        late = self._clock() - self._moved_at >= self.options.max_delay_s
        return sum(step.lag for step in found) < self.options.min_offsets and not late

    def _report(self, server: str, topic: str, lost: Lost) -> None:
        """Raise, or warn once for each loss."""
        if self.options.fail_on_data_loss or self._told.get((server, topic)) != lost:
            report(self.options, server, topic, lost)
        self._told[server, topic] = lost

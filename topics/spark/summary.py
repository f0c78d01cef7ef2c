"""Summary: what a job did, compared with the server's own count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a job did. ``appended + deduped == records``; ``head_before`` and ``head_after`` are the
    server's own count.
    """

    topic: str
    job_id: str
    records: int
    appended: int  # got a new seq in this run
    deduped: int  # an earlier run had written them
    requests: int
    repeated: int  # requests that were answered with an earlier answer
    retries: int
    seconds: float
    first_seq: int
    last_seq: int
    head_before: int
    head_after: int
    same_topic: bool  # the topic was not deleted and made again meanwhile

    @property
    def agrees(self) -> bool:
        """Whether the topic's head moved by exactly what was appended."""
        return self.same_topic and self.head_after - self.head_before == self.appended

    def text(self) -> str:
        """For a terminal: figures, then whether the server agrees."""
        rate = self.records / self.seconds if self.seconds > 0 else 0.0
        span = f"seqs {self.first_seq:,} to {self.last_seq:,}" if self.records else "no seqs"
        return (
            f'{self.records:,} records to topic "{self.topic}" in {self.seconds:.1f} s,'
            f" {rate:,.0f} records/s, {span}\n"
            f"{self.appended:,} appended, {self.deduped:,} already there from an earlier run of"
            f" job {self.job_id}\n"
            f"{self.requests:,} requests, {self.retries:,} retries, {self.repeated:,} answered from"
            f" an earlier answer\n{self._verdict()}"
        )

    def _verdict(self) -> str:
        moved = self.head_after - self.head_before
        heads = f"head {self.head_before:,} before, {self.head_after:,} after"
        if self.agrees:
            return f"The server agrees: {heads}."
        if not self.same_topic:
            return (
                "The server does NOT agree: the topic was deleted and made again while the job ran"
                f" ({heads})."
            )
        if moved > self.appended:
            return (
                f"The server does NOT agree: {heads}, {moved - self.appended:,} more than this job"
                " accounts for. Another writer, a router, or a task attempt that saw other rows"
                " than its retry (a nondeterministic query) wrote them."
            )
        missing = self.appended - moved
        return f"The server does NOT agree: {heads}, {missing:,} fewer than it acknowledged."


def summarize(
    topic: str,
    job: str,
    figures: Sequence[Row] | Sequence[dict[str, int]],
    before: dict[str, Any],
    after: dict[str, Any],
    seconds: float,
) -> Summary:
    """Add up the figures of the partitions and compare them with the server's head."""
    names = ("records", "appended", "deduped", "requests", "retries", "repeated")
    sums = {name: sum(row[name] for row in figures) for name in names}
    busy = [row for row in figures if row["records"]]
    return Summary(
        topic=topic,
        job_id=job,
        seconds=seconds,
        first_seq=min((row["first_seq"] for row in busy), default=0),
        last_seq=max((row["last_seq"] for row in busy), default=0),
        head_before=before["head_seq"],
        head_after=after["head_seq"],
        same_topic=before.get("epoch") == after.get("epoch"),
        **sums,
    )

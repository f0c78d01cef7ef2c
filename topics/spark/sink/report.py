"""Summaries of a write for the user, each one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topics.spark.sink.sending import Sent, TaskFigures

NAMED_TOPICS = 3


def total(figures: Iterable[TaskFigures]) -> dict[str, Sent]:
    """Return the sums of all tasks, ordered by topic."""
    sums: dict[str, Sent] = {}
    for task in figures:
        for topic, sent in task.topics.items():
            into = sums.setdefault(topic, Sent())
            into.records += sent.records
            into.repeated += sent.repeated
            into.requests += sent.requests
    return dict(sorted(sums.items()))


def summary_line(figures: Sequence[TaskFigures], *, seconds: float) -> str:
    """Return a summary of a successful write."""
    sums = total(figures)
    records = sum(sent.records for sent in sums.values())
    repeated = sum(sent.repeated for sent in sums.values())
    requests = sum(sent.requests for sent in sums.values())
    summary = (
        f"{records:,} records to {_named(sums)} in {seconds:.1f} s, {requests:,} requests,"
        f" {sum(task.retries for task in figures):,} retries"
    )
    if repeated:
        summary += f", {repeated:,} of the records were there from an earlier attempt or run"
    return summary


def remaining_records(figures: Sequence[TaskFigures], moved: int | None) -> str:
    """Return a description of the records that a failed write has appended, empty if there are
    none. ``moved`` is the number of new seqs in the topic, None if it is unknown.
    """
    if moved is not None:
        return f"about {moved:,} records that it appended remain" if moved else ""
    done = sum(sent.records for sent in total(figures).values())
    return f"the {done:,} records of its finished tasks remain, and those of its other tasks"


def warnings_of(planned: Iterable[str], figures: Iterable[TaskFigures]) -> list[str]:
    """Return each warning once."""
    found = [*planned, *(warning for task in figures for warning in task.warnings)]
    return list(dict.fromkeys(found))


def _named(sums: dict[str, Sent]) -> str:
    names = ", ".join(f'"{topic}"' for topic in list(sums)[:NAMED_TOPICS])
    if len(sums) > NAMED_TOPICS:
        return f"{len(sums):,} topics ({names} and others)"
    return f"{'topics' if len(sums) > 1 else 'topic'} {names}" if sums else "no topic"

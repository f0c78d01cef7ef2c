"""Report: what the tasks of a write did, in lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from topics.spark.sink.sending import Sent, TaskFigures

NAMED_TOPICS = 3


def total(figures: Iterable[TaskFigures]) -> dict[str, Sent]:
    """The figures of all tasks together, by topic, in the order of the topics' names."""
    sums: dict[str, Sent] = {}
    for task in figures:
        for topic, sent in task.topics.items():
            into = sums.setdefault(topic, Sent())
            into.records += sent.records
            into.repeated += sent.repeated
            into.requests += sent.requests
    return dict(sorted(sums.items()))


def summary_line(figures: Sequence[TaskFigures], *, seconds: float) -> str:
    """Records, topics, requests, and what earlier attempts had appended."""
    sums = total(figures)
    records = sum(sent.records for sent in sums.values())
    repeated = sum(sent.repeated for sent in sums.values())
    requests = sum(sent.requests for sent in sums.values())
    told = (
        f"{records:,} records to {_named(sums)} in {seconds:.1f} s, {requests:,} requests,"
        f" {sum(task.retries for task in figures):,} retries"
    )
    if repeated:
        told += f", {repeated:,} of the records were there from an earlier attempt or run"
    return told


def left_behind(figures: Sequence[TaskFigures], moved: int | None) -> str:
    """What stays of a failed write; empty for nothing. ``moved``: by how much the topic's head
    moved meanwhile, when that is known.
    """
    if moved is not None:
        return f"about {moved:,} records that it appended stay" if moved else ""
    done = sum(sent.records for sent in total(figures).values())
    return f"the {done:,} records of its finished tasks stay, and what the others appended"


def warnings_of(planned: Iterable[str], figures: Iterable[TaskFigures]) -> list[str]:
    """Each warning once."""
    found = [*planned, *(warning for task in figures for warning in task.warnings)]
    return list(dict.fromkeys(found))


def _named(sums: dict[str, Sent]) -> str:
    names = ", ".join(f'"{topic}"' for topic in list(sums)[:NAMED_TOPICS])
    if len(sums) > NAMED_TOPICS:
        return f"{len(sums):,} topics ({names} and others)"
    return f"{'topics' if len(sums) > 1 else 'topic'} {names}" if sums else "no topic"

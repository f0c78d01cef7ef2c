"""A readable report of a run: the entries around a violation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import msgspec

from tests.simulation.history import Call, Entry, ServerEvent

LINE_MAX = 400
LINES_MAX = 300


def lines(entries: Sequence[Entry], concerned: Set[int]) -> Iterator[str]:
    """Return the last entries of the topics that these entries concern, and the events during that
    time.
    """
    if not concerned:
        return
    names = {
        entry.path.split("?")[0].split("/")[3]
        for entry in entries
        if isinstance(entry, Call) and entry.began in concerned and entry.path.count("/") > 2
    }
    shown = [line(entry, concerned) for entry in entries if _is_shown(entry, concerned, names)]
    yield from shown[-LINES_MAX:]


def _is_shown(entry: Entry, concerned: Set[int], names: set[str]) -> bool:
    if isinstance(entry, Call):
        return entry.began in concerned or any(name in entry.path for name in names)
    return isinstance(entry, ServerEvent) or entry.number in concerned


def line(entry: Entry, concerned: Set[int]) -> str:
    """Return one entry as a line of text."""
    if isinstance(entry, ServerEvent):
        shown = f"{entry.number:6} {entry.at:10.3f}   {entry.what} {entry.who} {entry.how}"
        return f"{shown} {entry.value or ''}".rstrip()
    if isinstance(entry, Call):
        mark = ">" if entry.began in concerned else " "
        body = msgspec.json.encode(entry.body).decode()
        answer = msgspec.json.encode(entry.answer).decode()
        shown = (
            f"{entry.began:6} {entry.at:10.3f} {mark} {entry.client} {entry.method} {entry.path}"
        )
        return f"{shown} {body[:150]} = {entry.status} {answer}"[:LINE_MAX]
    shown = (
        f"{entry.number:6} {entry.at:10.3f} > {entry.client} receives {entry.event} {entry.data}"
    )
    return shown[:LINE_MAX]

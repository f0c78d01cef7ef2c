"""Judges the dests of routers after a power loss, as `check_state` judges other topics.

fsync   every copy that was read before the loss is there, as it was
disk    the same, but for a tail that is gone: nothing behind it is there
all     a copy is one record that was appended to the root of its source, once, in that order; it is
        what was read at this seq, whenever that was; between two copies nothing is missing that
        must come over (`power_routers`), or a tombstone tells it; the cursor of the router says
        which records are there, and its total how many
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

STAMP = "_topics_router"

Origin = tuple[int, int]
"""Number of the append, and which record of it: both rise in the order of the source."""


class FoundCopies(NamedTuple):
    """A dest that was opened. ``cursors``: (cursor, total) of its routers."""

    records: dict[int, Any]
    gaps: list[tuple[int, int]]
    cursors: list[tuple[int, int]]


@dataclass(slots=True)
class Appended:
    """What was appended to a source. ``seqs``: in its latest incarnation."""

    records: dict[Origin, dict[str, Any]] = field(default_factory=dict)
    seqs: dict[int, Origin] = field(default_factory=dict)


@dataclass(slots=True)
class CopyHistory:
    """What is known of a dest. ``read``: the copies that were read before the loss, ``ever``: at
    any time.
    """

    durability: str
    kind: str
    is_direct: bool  # its source is where records are appended
    is_stamped: bool
    appended: Appended
    read: dict[int, Any] = field(default_factory=dict)
    ever: dict[int, Any] = field(default_factory=dict)


def copy_histories(acknowledged: Path, before_ns: int) -> dict[str, CopyHistory]:
    """Every dest that had a router before the loss."""
    with acknowledged.open() as lines:
        notes = [json.loads(line) for line in lines]
    durabilities: dict[str, str] = {}
    appended: dict[str, Appended] = {}
    found: dict[str, CopyHistory] = {}
    for note in notes:
        topic = note["topic"]
        if note["step"] == "put" and "durability" in note["config"]:
            durabilities[topic] = note["config"]["durability"]
        elif note["step"] == "append" and note["sent"] < before_ns:
            _append(appended.setdefault(topic, Appended()), note)
        elif note["step"] == "remove" and note["sent"] < before_ns:
            appended.setdefault(topic, Appended()).seqs.clear()
        elif note["step"] == "route" and note["sent"] < before_ns and topic not in found:
            root = appended.setdefault(note["root"], Appended())
            is_direct = note["root"] == note["source"]
            is_stamped = note["guarantee"] == "exactly_once"
            found[topic] = CopyHistory(
                durabilities[topic], note["kind"], is_direct, is_stamped, root
            )
        elif note["step"] == "copies" and topic in found:
            copies = {record["$seq"]: record for record in note["records"]}
            found[topic].ever |= copies
            found[topic].read |= copies if note["acknowledged"] < before_ns else {}
    return found


def _append(appended: Appended, note: dict[str, Any]) -> None:
    for seq, record in enumerate(note["records"], note["first_seq"]):
        number, position, *_ = record["data"]
        appended.records[number, position] = record
        appended.seqs[seq] = number, position


def copies_differ(history: CopyHistory, found: FoundCopies) -> Iterator[str]:
    """What is wrong with a dest."""
    last = max(found.records, default=0)
    told = {seq for first, end in found.gaps for seq in range(first, end + 1)}
    for seq in history.read:
        if seq not in found.records and (history.durability == "fsync" or seq <= last):
            yield f"copy {seq} was read and is gone"
        elif seq not in found.records and seq not in told:
            yield f"copy {seq} is gone and nobody tells: {found.gaps}"
    for seq, record in found.records.items():
        if seq in history.ever and history.ever[seq] != record:
            yield f"copy {seq} is {str(record)[:150]}, it was {str(history.ever[seq])[:150]}"
    yield from _contents_differ(history, found)
    yield from _disorder(history, found, told)
    yield from _badly_counted(history, found)


def _origin(record: dict[str, Any]) -> Origin:
    number, position, *_ = record["data"]
    return number, position


def _contents_differ(history: CopyHistory, found: FoundCopies) -> Iterator[str]:
    """Of copies that nobody has read, too."""
    for seq, record in found.records.items():
        sent = history.appended.records.get(_origin(record))
        there = record["data"], record.get("$tag"), record.get("$node")
        if sent is None or there != (sent["data"], sent.get("tag"), None):
            yield f"copy {seq} is {str(record)[:150]}, appended was {str(sent)[:150]}"
        stamp = record.get("meta", {}).get(STAMP)
        if history.is_stamped != (stamp is not None):
            yield f"copy {seq} has the stamp {stamp}"
        elif stamp and history.appended.seqs.get(stamp["source_seq"]) != _origin(record):
            yield f"copy {seq} is {_origin(record)}, its stamp is {stamp}"


def _disorder(history: CopyHistory, found: FoundCopies, told: set[int]) -> Iterator[str]:
    """From copy to copy: order, and what is missing in between."""
    copies = sorted((seq, _origin(record)) for seq, record in found.records.items())
    origins = sorted(history.appended.records)
    places = {origin: place for place, origin in enumerate(origins)}
    for (seq, origin), (next_seq, following) in pairwise([(0, (0, 0)), *copies]):
        if following <= origin:
            yield f"copy {next_seq} is {following}, behind {origin} at {seq}"
            continue
        burnt = next_seq - seq - 1
        if not told.issuperset(range(seq + 1, next_seq)):
            yield f"between {seq} and {next_seq} seqs are missing, and nobody tells: {found.gaps}"
        if history.kind == "free" or following not in places:
            continue
        missing = places[following] - places.get(origin, -1) - 1
        if missing != burnt:
            yield f"between {seq} and {next_seq} {missing} records are missing, {burnt} seqs"


def _badly_counted(history: CopyHistory, found: FoundCopies) -> Iterator[str]:
    """Cursor, total and contents are one unit."""
    if history.kind == "free":
        return
    if len(found.cursors) > 1:
        yield f"{len(found.cursors)} routers feed it: {found.cursors}"
    for cursor, total in found.cursors:
        if total != len(found.records):
            yield f"the total is {total}, {len(found.records)} copies are there"
        if history.kind == "plain" and history.is_direct and found.records:
            last = max(map(_origin, found.records.values()))
            if history.appended.seqs.get(cursor) != last:
                yield f"the cursor is {cursor}, the last copy is {last}"

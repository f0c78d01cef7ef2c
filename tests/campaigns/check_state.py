"""Judges a data directory as a power loss may have left it: ``python -m tests.campaigns.check_state
ACKNOWLEDGED SOCKET``.

It judges one directory after the other for those who ask there (`ASK`), each in a fork: that saves
the second that a start takes. ACKNOWLEDGED is what `power_load` noted. The environment variable
CRASH_BEFORE_NS of who asks is the moment of the loss: what was acknowledged before it is promised,
what was sent before it may have happened, and nothing else can have. By class:

    fsync               every acknowledged record is there unless it was deleted or evicted, every
                        acknowledged delete holds
    disk                as fsync, but the newest steps may be gone together: what is there is what
                        some earlier moment looked like, with all that a delete took or nothing of
                        it
    memory, ephemeral   records may be gone; those that are there are the ones that were written
    queues              as `check_jobs` says
    dests of routers    as `check_routers` says
    all                 making, configuring and removing a topic holds; no seq that was acknowledged
                        is given again; what is missing and was not deleted is told by a tombstone;
                        recovering twice is recovering once, also after an orderly stop; a key
                        stands for the write that it was sent with; `topics verify` finds nothing,
                        before and after
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.campaigns.check_jobs import JobsModel, badly_moved, jobs_differ
from tests.campaigns.check_routers import CopyHistory, FoundCopies, copies_differ, copy_histories
from tests.campaigns.opened import Found, Opened
from tests.support.model import Kept, TopicModel
from topics.engine.dedupe import DIGEST_BYTES, digest_of
from topics.storage.data_dir import decode_meta
from topics.storage.verify import Finding, verify_directory

CLASSES = ("ephemeral", "memory", "disk", "fsync")  # the weakest first
ASK = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect(sys.argv[1])
    channel.sendall(json.dumps([os.environ["CRASH_BEFORE_NS"], sys.argv[2]]).encode() + bytes([10]))
    with channel.makefile() as lines:
        wrong = json.loads(lines.read() or '["the judge has died"]')
print(*wrong, sep=chr(10))
sys.exit(1 if wrong else 0)
"""


@dataclass(slots=True)
class Moment:
    """What one incarnation of a topic looked like after some step."""

    model: TopicModel
    removed: bool = False
    keys: dict[bytes, int] = field(default_factory=dict)  # digests, with the first seqs
    jobs: JobsModel = field(default_factory=JobsModel)


@dataclass(slots=True)
class History:
    """One topic's steps up to the loss. The last ``doubtful`` of ``moments`` may have happened or
    not.
    """

    name: str
    durability: str = ""
    moments: list[Moment] = field(default_factory=lambda: [Moment(TopicModel(), removed=True)])
    promised: int = 0  # index of the moment that was acknowledged last
    # Index of the moment of the last acknowledged remove, or put that changed something: synced in
    # every class.
    controlled: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    handed_out: int = 0  # the highest seq that was acknowledged in the latest incarnation
    moves: list[dict[str, Any]] = field(default_factory=list)  # to its dead-letter topic

    def add(self, note: dict[str, Any], before_ns: int) -> None:
        last, step = self.moments[-1], note["step"]
        config = {} if step == "remove" else self.config | note.get("config", {})
        if step == "remove":
            self.moments.append(Moment(TopicModel(), removed=True))
        else:
            model = replace(last.model, live=dict(last.model.live))
            self._apply(model, note)
            keys, jobs = dict(last.keys), last.jobs.copy()
            if "key" in note:
                keys[digest_of(note["key"]).to_bytes(DIGEST_BYTES, "little")] = note["first_seq"]
            jobs.apply(note)
            self.moments.append(Moment(model, keys=keys, jobs=jobs))
        if step == "bury":
            self.moves.append(note)
        if note["acknowledged"] < before_ns:
            self.promised = len(self.moments) - 1
            if config != self.config:
                self.controlled = self.promised
            if step == "remove":
                self.handed_out = 0
            if step == "append":
                self.handed_out = note["first_seq"] + len(note["records"]) - 1
        self.config = config

    def _apply(self, model: TopicModel, note: dict[str, Any]) -> None:
        match note["step"]:
            case "put":
                # What was written in a weaker class keeps its promises, not those of the class of
                # today.
                now = note["config"].get("durability", self.durability)
                self.durability = min(self.durability or now, now, key=CLASSES.index)
                model.set_cap(note["config"].get("cap_records", model.cap_records))
            case "append":
                kept = (Kept(record["data"], record.get("tag")) for record in note["records"])
                model.append(kept, note["first_seq"])
            case "ack" | "bury":
                for seq in note["seqs"]:
                    del model.live[seq]
            case "delete":
                model.delete(**note["body"])

    @property
    def possible(self) -> list[Moment]:
        """The moments that a recovery may come back to."""
        exact = self.durability == "fsync"
        return self.moments[self.promised if exact else self.controlled :]


def histories(acknowledged: Path, before_ns: int) -> list[History]:
    """Every topic with what was sent to it before the loss."""
    found: dict[str, History] = {}
    with acknowledged.open() as lines:
        for line in lines:
            note = json.loads(line)
            if note["sent"] < before_ns and note["step"] not in ("route", "copies"):
                found.setdefault(note["topic"], History(note["topic"])).add(note, before_ns)
    return list(found.values())


def judge(history: History, found: Found | None) -> str | None:
    """What is wrong with one topic; None when nothing is."""
    possible = history.possible
    if found is None:
        return None if any(moment.removed for moment in possible) else "the topic is gone"
    moments = [moment for moment in possible if not moment.removed]
    if not moments:
        return "the topic is there, though it was removed"
    if not any(moment.removed for moment in possible) and found.next_seq <= history.handed_out:
        return f"the next seq would be {found.next_seq}, {history.handed_out} was handed out"
    if history.durability in ("fsync", "disk"):
        reasons = [_moment_differs(found, moment) for moment in moments]
        if None in reasons:
            return None
        told = " / ".join(dict.fromkeys(map(str, reasons)))
        return f"it is none of the {len(moments)} moments that it may be: {told}"
    return _made_up(found, moments) or _untold_at_best(history, found)


def _moment_differs(found: Found, moment: Moment) -> str | None:
    """What is wrong if this was the last moment."""
    if said := _differs(found, moment.model):
        return said
    if found.keys != moment.keys:  # as durable as their records (§0.8), also once these are deleted
        differ = sorted({*found.keys.items()} ^ {*moment.keys.items()})
        return f"{len(differ)} keys differ, the first is {differ[0]}"
    if found.jobs is None:
        return None
    ts = {seq: record["$ts"] for seq, record in found.records.items()}
    return jobs_differ(found.jobs, moment.jobs, ts)


def _differs(found: Found, model: TopicModel) -> str | None:
    there = {seq: (record["data"], record.get("$tag")) for seq, record in found.records.items()}
    expected = {seq: tuple(kept) for seq, kept in model.live.items()}
    if missing := sorted({*expected} - {*there}):
        return f"{len(missing)} records are missing, from seq {missing[0]} to {missing[-1]}"
    if more := sorted({*there} - {*expected}):
        return f"{len(more)} records are there that should not be, from seq {more[0]} to {more[-1]}"
    if there != expected:
        return f"other bytes at {[seq for seq in there if there[seq] != expected[seq]][:3]}"
    return _untold(found, model)


def _untold(found: Found, model: TopicModel) -> str | None:
    told = {seq for first, last in found.gaps for seq in range(first, last + 1)}
    if model.evict_floor > 1 and not told.issuperset(range(1, model.evict_floor)):
        return f"the loss up to seq {model.evict_floor - 1} is not told: {found.gaps}"
    if found.head_seq == model.head_seq and found.gaps != ([model.gap(0)] if model.gap(0) else []):
        return f"the gaps {found.gaps} are told, {model.gap(0)} belongs there"
    if found.count != len(found.records):
        return f"the count is {found.count}, {len(found.records)} records are there"
    if not told.issuperset(range(model.head_seq + 1, found.head_seq + 1)):
        return f"seqs from {model.head_seq + 1} are lost and nobody tells: {found.gaps}"
    if told & found.records.keys():
        return f"seqs {sorted(told & found.records.keys())[:3]} are told as lost and are there"
    return None


def _made_up(found: Found, moments: list[Moment]) -> str | None:
    """For classes that may lose: what is there was written."""
    written = {seq: tuple(kept) for moment in moments for seq, kept in moment.model.live.items()}
    if strange := {*found.keys.items()} - {*moments[-1].keys.items()}:
        return f"keys stand for what they were not sent with: {strange}"
    for seq, record in found.records.items():
        if (was := written.get(seq)) != (record["data"], record.get("$tag")):
            return f"seq {seq} is {str(record)[:100]}, it was written as {str(was)[:100]}"
    return None


def _untold_at_best(history: History, found: Found) -> str | None:
    """For classes that may lose: what is missing is told. What a step that was under way may have
    taken is left out.
    """
    latest = history.moments[history.promised :]
    if any(moment.removed for moment in latest):
        return None
    kept = set.intersection(*({*moment.model.live} for moment in latest))
    told = {seq for first, last in found.gaps for seq in range(first, last + 1)}
    if silent := sorted(kept - told - found.records.keys()):
        return f"seqs {silent[:5]} are gone and nobody tells: {found.gaps}"
    return None


def problems(wanted: list[History], dests: dict[str, CopyHistory], data_dir: Path) -> list[str]:
    """Open the directory three times, the second time to stop in order, and judge what is found.

    ``dests``: those of ``wanted`` that routers feed.
    """
    wrong = [f"before recovery: {finding}" for finding in findings(data_dir)]
    views = []
    for life in range(3):
        with Opened(data_dir) as opened:
            strangers = {*opened.topics()} - {history.name for history in wanted}
            views.append({history.name: opened.read(history.name) for history in wanted})
            if life == 1:
                opened.stop()
        wrong += [f"after recovery {life + 1}: {finding}" for finding in findings(data_dir)]
        wrong += [f"{name} was never made" for name in sorted(strangers)]
    for history in wanted:
        first, second, third = (view[history.name] for view in views)
        if history.name in dests:
            wrong += _dest_problems(history.name, dests[history.name], first)
        elif problem := judge(history, first):
            wrong.append(f"{history.name}: {problem}")
        if _but_for_a_jump(history, first, second) != second:
            wrong.append(f"{history.name}: a second recovery finds: {first} {second}")
        if second != third:
            wrong.append(f"{history.name}: after an orderly stop there is: {second} {third}")
    for life, view in enumerate(views, 1):
        wrong += [f"recovery {life}: {said}" for said in _job_problems(wanted, view)]
    return wrong


def _dest_problems(name: str, history: CopyHistory, found: Found | None) -> Iterator[str]:
    """What is wrong with a topic that routers feed. It is never removed."""
    if found is None:
        yield f"{name}: the topic is gone"
        return
    if found.damaged or found.count != len(found.records):
        yield f"{name}: {found.count} are counted, {len(found.records)} there: {found.damaged}"
    copies = FoundCopies(found.records, found.gaps, found.cursors)
    yield from (f"{name}: {said}" for said in copies_differ(history, copies))


def _job_problems(wanted: list[History], view: dict[str, Found | None]) -> Iterator[str]:
    """What is wrong with the queues. `judge` has seen the first view; of the others it tells
    whether leases are what they were, too.
    """
    for history in wanted:
        found = view[history.name]
        if found is None or found.jobs is None:
            continue
        if problem := judge(history, found):
            yield f"{history.name}: {problem}"
        dead = view.get(str(history.config.get("dead_letter")))
        if dead is not None:
            copies = [record["meta"]["$dead_letter_src_seq"] for record in dead.records.values()]
            for problem in badly_moved(history.moves, {*found.records}, found.jobs, copies):
                yield f"{history.name}: {problem}"


def _but_for_a_jump(history: History, first: Found | None, second: Found | None) -> Found | None:
    """What an `ephemeral` topic lost at an orderly stop is told exactly, after a kill up to the
    seqs that were reserved.
    """
    if history.durability != "ephemeral" or first is None or second is None:
        return first
    if second.head_seq <= first.head_seq:
        return first
    earliest_seq = first.earliest_seq if first.records else second.earliest_seq
    later: dict[str, Any] = {
        "head_seq": second.head_seq,
        "next_seq": second.next_seq,
        "gaps": second.gaps,
    }
    return replace(first, earliest_seq=earliest_seq, **later)


def _shards_of(data_dir: Path) -> int:
    """As `meta` says; a directory without it has no file that counts."""
    meta = data_dir / "meta"
    return decode_meta(meta.read_bytes()) if meta.exists() else 1


def findings(data_dir: Path) -> list[str]:
    """What `topics verify` finds."""
    return [
        str(finding)
        for finding in verify_directory(data_dir, _shards_of(data_dir))
        if isinstance(finding, Finding)
    ]


def problems_or_error(acknowledged: Path, data_dir: Path, before_ns: int) -> list[str]:
    """`problems`, and what kept the directory from being opened."""
    try:
        dests = copy_histories(acknowledged, before_ns)
        return problems(histories(acknowledged, before_ns), dests, data_dir)
    except Exception:  # whatever a start would stop with
        return traceback.format_exc().splitlines()[-3:]


def serve(acknowledged: Path, path: str) -> None:
    """Judge for all who ask, until killed."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            channel, _ = listener.accept()
            child = os.fork()
            if not child:
                with channel, channel.makefile("rw") as lines:
                    before_ns, data_dir = json.loads(lines.readline())
                    wrong = problems_or_error(acknowledged, Path(data_dir), int(before_ns))
                    json.dump(wrong, lines)
                os._exit(0)
            channel.close()
            os.waitpid(child, 0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])

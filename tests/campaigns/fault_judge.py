"""What must hold after a fault: a start on what is left, every topic, one more write to each."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from tests.campaigns.fault_workload import FILE_BYTES, Journal
from tests.support.log import Client
from topics.actors.shard.context import clock
from topics.storage.verify import Finding, verify_directory

AFTER = "1000000"  # the number of what is written after the fault


def judge(path: Path, journal: Journal, what: str, *, power: bool, boot: str) -> Iterator[str]:
    """Start on ``path``, look at everything, write once more to every topic; the process is killed
    afterwards.
    """
    try:
        client = Client(path, boot=boot, now=clock(), file_bytes=FILE_BYTES, sync_ms=60_000)
    except BaseException as error:  # whatever it is, it is a finding
        yield f"{what}: the start fails: {error!r} {traceback.format_exc(limit=-3)}"
        return
    try:
        for topic in journal.gone & client.engine.topics.keys():
            yield f"{what}: topic {topic} was deleted and is there"
        for router in journal.routed - client.engine.routers.by_name.keys():
            yield f"{what}: router {router} is missing"
        for topic, records in journal.records.items():
            if topic not in client.engine.topics:
                yield f"{what}: topic {topic} is missing"
                continue
            yield from _judge_topic(client, topic, records, journal, what, power=power)
        yield from _go_on(client, journal, what)
    finally:
        client.kill()
    yield from (
        f"{what}: verify: {found}"
        for found in verify_directory(path, 1)
        if isinstance(found, Finding)
    )


def _judge_topic(
    client: Client, topic: str, records: dict[int, str], journal: Journal, what: str, *, power: bool
) -> Iterator[str]:
    shown = _shown(client, topic)
    strangers = {seq: data for seq, data in shown.items() if data in journal.refused}
    if strangers:
        yield f"{what}: {topic} shows refused records {strangers}"
    if topic in journal.routed:
        numbers = [int(data) for data in shown.values() if data != AFTER]
        if any(after <= before for before, after in pairwise(numbers)):
            yield f"{what}: {topic} holds copies twice, or not in order: {numbers}"
    if power and journal.classes[topic] != "fsync":
        return
    missing = {seq: data for seq, data in records.items() if shown.get(seq) != data}
    if missing:
        yield f"{what}: {topic} has lost {missing}"
    back = {seq: data for seq, data in shown.items() if data in journal.deleted.get(topic, ())}
    if back:
        yield f"{what}: {topic} shows deleted records {back}"


def _shown(client: Client, topic: str) -> dict[int, str]:
    shown: dict[int, str] = {}
    seq, page = 0, client.read(topic)
    while True:
        for record in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.pieces))):
            shown[record["$seq"]] = record["data"].split()[0]
        if page.caught_up:
            return shown
        assert page.next_from_seq > seq, "a reader gets on"
        seq = page.next_from_seq
        page = client.read(topic, seq)


def _go_on(client: Client, journal: Journal, what: str) -> Iterator[str]:
    for topic in journal.records.keys() & client.engine.topics.keys():
        first, _ = client.append(topic, f"{AFTER} after")
        if first <= journal.highest.get(topic, 0):
            yield f"{what}: {topic} gives seq {first} again, {journal.highest[topic]} was given"
        if journal.classes[topic] == "fsync":
            journal.records[topic][first] = AFTER
        journal.highest[topic] = first

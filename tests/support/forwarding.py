"""Forwards in a shard that the test drives directly, without routers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.limits import LIMITS
from tests.support.log import Client
from topics.engine.changes import reservation
from topics.engine.changes.forward import Forward, ForwardDest, Forwarded, copy_ts
from topics.engine.changes.forward import forward as decide_forward
from topics.engine.routing.derivations import derivation_of
from topics.formats.api.append_body import decode_append
from topics.formats.disk.copies import Copier, ForwardBody, Run, view_of
from topics.formats.disk.rendering import encode
from topics.formats.json_text import json_bytes

ROUTER = 1
RECORDS: list[dict[str, Any]] = [
    {"data": "x" * 50, "tag": "t", "meta": {"m": 1}},
    {"data": [1, 2], "node": "n"},
    {"data": None},
]


def forward(client: Client, names: Sequence[str], records: list[dict[str, Any]] = RECORDS) -> int:
    """Append copies of these records to topics. Return the LSN of the frame, which contains the
    records.
    """
    body = decode_append(json_bytes({"records": records}), None, LIMITS)
    view = view_of(encode(body, 1, 1_000, False))
    run = Run(0, 0, 0, len(records))
    return _submit(
        client, names, Copier([(view, run)], ()), ForwardBody(0, 1, (), [run], payload=view)
    )


def forward_named(client: Client, names: Sequence[str], *runs: Run) -> int:
    """Append copies of records in other frames of the log. Return the LSN of the frame that refers
    to them.
    """
    parts = [(client.wal.payload(run.lsn), run) for run in runs]
    for run in runs:
        client.wal.blobs.keep_at(run.lsn)
    return _submit(client, names, Copier(parts, ()), ForwardBody(0, 1, (), runs))


def _submit(client: Client, names: Sequence[str], copier: Copier, body: ForwardBody) -> int:
    topics, engine = [client.engine.topic(name) for name in names], client.engine
    dests = [
        ForwardDest(each, ROUTER, derivation_of(each, ROUTER, 0).total, "r") for each in topics
    ]
    body = body._replace(cursor=topics[0].next_seq, tail_bytes=copier.tail_bytes)
    ts = copy_ts(topics[0], client.now)
    forwarded: Forwarded = decide_forward(engine.table, dests, copier, body, ts, client.now)
    lsn = client.commits.submit_forward(forwarded, lambda *_: None)
    for change in forwarded.changes:
        assert isinstance(change, Forward)
        reserved = reservation.decide(change.topic)
        if reserved is not None:
            client.submit(reserved)
    assert client.wait() is None
    return lsn

"""Verifies the payloads that the replayed log names: its copies are read from them."""

from __future__ import annotations

from collections.abc import Iterable

from topics.storage.linked_logs import LinkedLogs, Payload
from topics.storage.start_progress import StartProgress


def verify_linked(
    linked: LinkedLogs, payloads: Iterable[Payload], progress: StartProgress, *, is_clean: bool
) -> None:
    """Afterwards every payload is there, and whole. Raises `Damaged`.

    After an orderly stop only headers are read, as of blobs.
    """
    for shard, lsn in progress.over(sorted(payloads)):
        if is_clean:
            linked.look_for(shard, lsn)
        else:
            for _ in linked.checking(shard, lsn):
                progress.beat()

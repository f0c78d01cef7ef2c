"""Verifies the payloads that a shard's log names, in whatever log they stand, and its links.

A link that no frame names is no finding, whatever it holds: a crash may leave one, or bring one
back whose file is used again. A later start removes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from topics.storage.disk import Damaged
from topics.storage.linked_logs import LinkedLogs, Payload
from topics.storage.verify.finding import Finding


def verify_linked(
    data_dir: Path, shard: int, logs: Mapping[int, Path], payloads: Iterable[Payload]
) -> Iterator[Finding | Path]:
    """Findings; each link when it has been looked at.

    ``logs``: by base, the files of the shard's own log; ``payloads``: what their frames name.
    """
    linked = LinkedLogs(data_dir / "linked" / f"{shard:02d}", data_dir, shard)
    found: set[Finding] = set()
    for base, path in logs.items():
        linked.add_log(path, base)
    for payload in sorted(payloads):
        found.update(_damage(partial(_check, linked, payload)))
    yield from sorted(found)
    for path in linked.paths():
        yield path


def _check(linked: LinkedLogs, payload: Payload) -> None:
    for _ in linked.checking(*payload):
        pass


def _damage(check: Callable[[], object]) -> Iterator[Finding]:
    try:
        check()
    except Damaged as damage:
        yield Finding(damage.path, damage.offset, damage.reason)

"""Derivations: how far each router that feeds a topic has come, as the topic's own log has it.

    cursor   seq of the source up to which everything is done
    total    records that were forwarded so far in this life of the router

Both are committed together with the copies (`engine.changes.forward`), so they never tell of more
or of less than the topic holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topics.engine.topic import Topic


class Derivation(NamedTuple):
    """How far one router has come."""

    cursor: int
    total: int


def derivation_of(topic: Topic, router: int, start_seq: int) -> Derivation:
    """How far this router has come; one that has not begun stands at ``start_seq``."""
    known = None if topic.derivations is None else topic.derivations.get(router)
    return Derivation(start_seq, 0) if known is None else Derivation(*known)


def note_derivation(topic: Topic, router: int, reached: Derivation) -> None:
    """The router has come so far."""
    if topic.derivations is None:
        topic.derivations = {}
    topic.derivations[router] = reached


def forget_derivations(topic: Topic, keep: Iterable[int]) -> None:
    """Only these routers feed the topic now."""
    if topic.derivations is not None:
        kept = set(keep)
        left = {router: at for router, at in topic.derivations.items() if router in kept}
        topic.derivations = left or None

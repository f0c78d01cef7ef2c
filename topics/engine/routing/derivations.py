"""Derivations: the progress of each router that appends to a topic, as stored in the topic's own
log.

    cursor   seq of the source up to which all records have been processed
    total    number of records that this incarnation of the router has forwarded

Both are committed together with the copies (`engine.changes.forward`), so they always match the
records that the topic contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from topics.engine.topic import Topic


class Derivation(NamedTuple):
    """The progress of one router."""

    cursor: int
    total: int


def derivation_of(topic: Topic, router: int, start_seq: int) -> Derivation:
    """Return the progress of this router. A router without progress begins at ``start_seq``."""
    known = None if topic.derivations is None else topic.derivations.get(router)
    return Derivation(start_seq, 0) if known is None else Derivation(*known)


def set_derivation(topic: Topic, router: int, reached: Derivation) -> None:
    """Set the progress of the router."""
    if topic.derivations is None:
        topic.derivations = {}
    topic.derivations[router] = reached


def drop_other_derivations(topic: Topic, keep: Iterable[int]) -> None:
    """Drop the progress of all routers except ``keep``, because only these append to the topic
    now.
    """
    if topic.derivations is not None:
        kept = set(keep)
        left = {router: at for router, at in topic.derivations.items() if router in kept}
        topic.derivations = left or None

"""Preload: what the parent imports before a fork, so that its children share the modules and do not
each import them.

    parent   imports what all share ─ fork front ─ imports what shards share ─ fork shards ─ waits
    front                                └─ imports its own ─ serves
    shards                                                                       └─ recover, serve

So on two cores the front's modules and those of the shards are imported side by side. The parent
imports modules only: it starts no thread and no event loop, and runs nothing of them. A front's
modules stay out of it, and with them whatever reads bytes of clients. No shared module may read a
clock or draw a number when it is imported: all children would have the same.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def load_shared() -> None:
    """Import what the front and the shards have in common."""
    with _frozen():
        import topics.actors.rpc.message_router
        import topics.actors.rpc.typed_calls
        import topics.formats.api.answers
        import topics.process.measure  # noqa: F401


def load_shard() -> None:
    """Import what shards run."""
    load_shared()
    with _frozen():
        import topics.process.shard_writer  # noqa: F401


@contextmanager
def _frozen() -> Iterator[None]:
    """Import without the collector, and exempt the modules from later collections: one in a child
    would touch, and thereby copy, the shared pages.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()

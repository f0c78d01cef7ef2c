"""What the front asks of the shards. The front knows no ring and no process: it is handed one
`Backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from topics.actors.link.arena import Holder
from topics.actors.link.heads import HeadMark
from topics.actors.link.pulse import DAMAGED, DISK_STALLED, STALLED
from topics.actors.shards import Listener, Readiness
from topics.errors import NotReady, TopicsError
from topics.formats.buffers import Buffer

TROUBLES = {
    DAMAGED: "has damaged data",
    STALLED: "does not answer",
    DISK_STALLED: "waits for its disk",
}


class Reply(Protocol):
    """A shard's answer. ``body`` may live in shared memory: it is valid until `release`, which is
    called exactly once.
    """

    @property
    def result(self) -> dict[str, Any]: ...
    @property
    def body(self) -> bytes | memoryview: ...
    def release(self) -> None: ...
    def on_lost(self, let_go: Callable[[], object]) -> None:
        """``let_go`` is called if the memory of ``body`` is needed; it leads to `release` soon."""


class BodyBlock(Protocol):
    """Shared memory for one request body. It has one owner, who hands it to `Backend.call` or frees
    it.
    """

    @property
    def view(self) -> memoryview: ...
    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        """Make it longer and keep the first bytes; None when there is no room.

        It is done when the iterator is exhausted, of which each step takes a millisecond. The old
        ``view`` must not be used any more.
        """

    def shrink(self, n: int) -> None:
        """Keep the first ``n`` bytes."""

    def free(self) -> None: ...


Body = Buffer | BodyBlock


class Backend(Protocol):
    """The shards, as the front sees them."""

    @property
    def shards(self) -> int: ...

    def shard_of(self, topic: str) -> int: ...

    async def call(
        self, shard: int, method: str, params: dict[str, Any], body: Body = b""
    ) -> Reply:
        """Ask one shard and wait. Raises the shard's `TopicsError`; `NotReady` while it is down or
        recovering.

        A `BodyBlock` belongs to the backend from this call on, also when it raises. A cancelled
        call tells the shard that nobody waits any more.
        """

    def ask(
        self,
        shard: int,
        method: str,
        params: dict[str, Any],
        body: Body,
        then: Callable[[Reply | TopicsError], None],
    ) -> None:
        """As `call`, without a task that waits: ``then`` is called with the answer. `flush` sends
        it off.
        """

    def notify(self, shard: int, name: str, params: dict[str, Any]) -> None:
        """Tell one shard ``event/NAME``. `flush` sends it off."""

    def flush(self, shard: int) -> None: ...

    def listen(self, listener: Listener) -> None:
        """``listener`` hears what the shards say without being asked."""

    def reserve(self, shard: int, length: int, holder: Holder | None) -> BodyBlock | None:
        """Shared memory for a body above ``settings.inline_bytes``; None when it is full.

        Raises `NotReady` when the shard is away. The holder is told to give up when the shard goes
        or others need the room more. None: the block is filled and sent at once.
        """

    def make_room(self, shard: int, holder: Holder, now: float) -> bool:
        """Tell a slower holder to give up; whether there is one, which does so when others run."""

    def head(self, shard: int, mark: HeadMark) -> int | None:
        """Head of the topic of a page that was read ahead; None when the page is not its answer any
        more.
        """

    def readiness(self) -> Readiness: ...


def unready(readiness: Readiness) -> NotReady:
    """The failure of §8.2, with all ``shards`` that do not serve; the worst trouble is the reason."""
    shards = [{"shard": shard, "state": state} for shard, state in readiness.unwell]
    for shard, state in readiness.unwell:
        if state in TROUBLES:
            return NotReady(
                f"shard {shard} {TROUBLES[state]}",
                reason=state,
                replay_progress=readiness.progress,
                shards=shards,
            )
    return NotReady("the log is being replayed", replay_progress=readiness.progress, shards=shards)


__all__ = [
    "Backend",
    "Body",
    "BodyBlock",
    "HeadMark",
    "Holder",
    "Listener",
    "Readiness",
    "Reply",
    "unready",
]

"""Backend: what the front asks of the shards. Every request is a `Call` of the calls table
(`topics.formats.wire.calls`).

The front knows no ring and no process. It is handed one `Backend`, which is
`topics.actors.shard_client.shards.Shards` in a server and a fake in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

from topics.actors.link.arena import Holder
from topics.actors.link.pulse import DAMAGED, DISK_STALLED, STALLED
from topics.actors.rpc.call import PendingCall
from topics.actors.shard_client.readiness import Readiness
from topics.actors.shard_client.shard_link import Listener
from topics.errors import NotReady, TopicsError
from topics.formats.buffers import Buffer
from topics.formats.wire.contract import Call, Event, P, R

TROUBLES: Final = {
    DAMAGED: "has damaged data",
    STALLED: "does not answer",
    DISK_STALLED: "waits for its disk",
}
R_co = TypeVar("R_co", covariant=True, bound=tuple[Any, ...])


class Reply(Protocol[R_co]):
    """A shard's answer. ``body`` may lie in shared memory: it is valid until `release`, which is
    called exactly once.
    """

    @property
    def result(self) -> R_co:
        """What happened, as the calls table says."""

    @property
    def body(self) -> bytes | memoryview:
        """The attachment of the answer."""

    def release(self) -> None:
        """The body is not needed any more."""

    def on_lost(self, give_up: Callable[[], object]) -> None:
        """``give_up`` is called if the memory of ``body`` is needed; it leads to `release` soon."""


class BodyBlock(Protocol):
    """Shared memory for one request body. Its one owner hands it to `Backend.call` or frees it."""

    @property
    def view(self) -> memoryview:
        """The memory."""

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        """Make it longer and keep the first bytes; None when there is no room.

        It is done when the iterator is exhausted, of which each step takes a millisecond. The old
        ``view`` must not be used any more.
        """

    def shrink(self, n: int) -> None:
        """Keep the first ``n`` bytes."""

    def free(self) -> None:
        """Give the memory back."""


Body = Buffer | BodyBlock


def listed(prefixes: tuple[str, ...] | None) -> list[str] | None:
    """A key's prefixes as the calls table has them."""
    return None if prefixes is None else list(prefixes)


class Backend(Protocol):
    """The shards, as the front sees them."""

    @property
    def shards(self) -> int:
        """How many there are."""

    @property
    def batch(self) -> AbstractContextManager[None]:
        """What is asked inside is sent together at its end. It is entered by what never waits."""

    def shard_of(self, topic: str) -> int:
        """The shard that owns the topic."""

    def call(
        self, shard: int, call: Call[P, R], params: P, body: Body = b""
    ) -> Coroutine[Any, Any, Reply[R]]:
        """Ask one shard and wait. Raises the shard's `TopicsError`; `NotReady` while it is down or
        recovering.

        A `BodyBlock` belongs to the backend from this call on, also when it raises. A cancelled
        call tells the shard that nobody waits any more.
        """

    def ask(
        self,
        shard: int,
        call: Call[P, R],
        params: P,
        body: Body,
        then: Callable[[Reply[R] | TopicsError], None],
    ) -> PendingCall | None:
        """As `call`, without a task that waits: ``then`` is called with the answer, perhaps before
        this returns. `flush` sends it. Whoever does not want the answer abandons the call.
        """

    def notify(self, shard: int, event: Event[P], params: P, *, quiet: bool = False) -> None:
        """Tell one shard; nobody answers. `flush` sends it, but if ``quiet`` not without anything
        else.
        """

    def flush(self, shard: int) -> None:
        """Send what was asked and notified."""

    def listen(self, listener: Listener) -> None:
        """``listener`` is told what the shards send unasked."""

    def reserve(self, shard: int, length: int, holder: Holder | None) -> BodyBlock | None:
        """Shared memory for a body above ``settings.inline_bytes``; None when it is full.

        Raises `NotReady` when the shard is away. The holder is told to give up when the shard goes
        or others need the room more. Without a holder the block is filled and sent at once.
        """

    def make_room(self, shard: int, holder: Holder, now: float) -> bool:
        """Tell a slower holder to give up; whether there is one, which does so when others run."""

    def delay_ms(self, shard: int) -> float:
        """How long a message to the shard waits there now; 0 while it is away."""

    def readiness(self) -> Readiness:
        """How far the shards are."""


def unready(readiness: Readiness) -> NotReady:
    """The failure of §8.2, with all ``shards`` that do not serve and the worst as the reason."""
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

"""Transport: what a link session sends through, and who owns the memory of an attachment."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

from topics.formats.buffers import Buffer
from topics.formats.wire.message import Message


@runtime_checkable
class Block(Protocol):
    """Shared memory that was reserved for an attachment. Whoever takes the attachment owns it from
    then on, also when the call raises.
    """

    def free(self) -> None:
        """Give the memory back unsent."""


Attachment: TypeAlias = Buffer | Block


def discard(attachment: Attachment) -> None:
    """Free an attachment that is not sent."""
    if isinstance(attachment, Block):
        attachment.free()


class Transport(Protocol):
    """Sends the messages of one link session at a time. It may outlive the session and serve the
    next one. Nothing here blocks.
    """

    def send(
        self, subject: str, payload: bytes, attachment: Any = b"", *, message_id: int | None = None
    ) -> int:
        """Queue one message, by default under a fresh id. Raises PeerGone.

        ``message_id``: one of `next_message_id`.
        """

    def next_message_id(self) -> int:
        """A fresh message id."""

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """Queue a refusal about the peer's message ``about``. Raises PeerGone."""

    def release(self, message: Message) -> None:
        """Give the attachment's memory back to the peer. Does nothing for an inline attachment, nor
        the second time.
        """

"""Inbox: the messages that one end of a link takes out of the ring.

A message whose attachment is an arena reference gets the memory that the reference names; a
RELEASE, by which the peer gives a block back, is carried out here and not handed on. Bytes that no
correct process writes raise RingDamaged: nothing in the ring can be trusted then.
"""

from __future__ import annotations

from topics.actors.link.arena import ArenaWriter
from topics.actors.link.arena_reader import ArenaReader
from topics.actors.link.ring import RingConsumer, RingDamaged
from topics.formats.wire.message import ARENA, ARENA_REF, RELEASE, Assembler, Message


class Inbox:
    """Ring bytes to messages. ``name`` names the link in errors."""

    __slots__ = ("_assembler", "_consumer", "_name", "_reader", "_writer")

    def __init__(
        self, consumer: RingConsumer, reader: ArenaReader, writer: ArenaWriter, name: str
    ) -> None:
        self._consumer = consumer
        self._reader, self._writer = reader, writer
        self._name = name
        self._assembler = Assembler()

    def clear(self) -> None:
        """Forget the message that has arrived in part: a session begins."""
        self._assembler = Assembler()

    def receive(self) -> list[Message]:
        """Every message that is complete."""
        data = self._consumer.read()
        if not data:
            return []
        messages = self._assembler.feed(data)
        if self._assembler.damaged:
            raise RingDamaged(f"bytes in the ring are no message ({self._name})")
        for message in messages:
            if message.flags & (ARENA | RELEASE):
                resolved = map(self._resolve, messages)
                return [message for message in resolved if message is not None]
        return messages

    def _resolve(self, message: Message) -> Message | None:
        """The message with its arena block as attachment; None for a RELEASE, done here."""
        if not message.flags & (ARENA | RELEASE):
            return message
        if len(message.attachment) == ARENA_REF.size:
            offset, length = ARENA_REF.unpack(message.attachment)
            if message.flags & RELEASE and self._writer.release(offset):
                return None
            if message.flags & ARENA and (view := self._reader.open(offset, length)) is not None:
                return Message(
                    message.message_id, message.flags, message.subject, message.payload, view
                )
        raise RingDamaged(f"message {message.message_id} names no arena block ({self._name})")

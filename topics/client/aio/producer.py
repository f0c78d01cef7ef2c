"""Producer: combines many small appends to one topic into few requests.

    send --> chunk --complete, or after ``linger`` s--> one append --> the result of each record
      '-- more than ``max_unacked`` bytes: `send` waits

At most one request is in flight, so records keep the order in which they were sent. All attempts of
a chunk have the same idempotency key. If the server refuses one record of a chunk, the others are
sent again without it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import msgspec

from topics.client import calls
from topics.client.aio.caller import AsyncCaller
from topics.client.aio.sender import AsyncSender
from topics.client.calls import Attempts, RecordFields
from topics.client.chunks import Chunk, Chunker, part_key, run_key
from topics.client.errors import ConnectionLost, Invalid, TopicsError
from topics.client.tasks import AsyncSent
from topics.client.values import Receipt, encoded


class AsyncProducer(AsyncSender):
    """Appends to one topic in the background. ``name`` is the prefix of the idempotency keys and
    must be different in each run of a program.
    """

    def __init__(
        self,
        client: AsyncCaller,
        topic: str,
        *,
        linger: float,
        max_records: int,
        max_bytes: int,
        max_unacked: int,
        name: str,
    ) -> None:
        super().__init__(f"producer of {topic}", client, max_unacked)
        self._topic, self._run_name, self._linger = topic, name, linger
        self._chunker = Chunker[int](max_records, max_bytes)
        self._complete: deque[Chunk[int]] = deque()

    async def send(self, data: Any, **fields: Unpack[RecordFields]) -> AsyncSent[int]:
        """Append a payload with the ``fields`` of a record (§2). Wait while too many bytes are
        unacknowledged. The result is the record's seq, or the `TopicsError` of its append. Raise
        `ValueError` for a value without a JSON form, and after `close`.
        """
        record = encoded(calls.record_of(data, fields))
        await self._start_sending()
        async with self._changed:
            number = await self._admit(record)
            self._complete.extend(self._chunker.add(record, number))
            self._changed.notify_all()
            return self._pending[number].sent

    async def _run(self) -> None:
        while (chunk := await self._next_chunk()) is not None:
            await self._append(chunk)

    async def _next_chunk(self) -> Chunk[int] | None:
        """Return the next chunk, or None if all records have been sent after `close`."""
        async with self._changed:
            await self._changed.wait_until(lambda: bool(self._pending) or self._is_closing)
            await self._changed.wait_until(self._is_due, self._linger)
            if not self._complete:
                self._complete.extend(self._chunker.flush())
            has_chunk = self._complete and not self._stop.is_set()
            return self._complete.popleft() if has_chunk else None

    def _is_due(self) -> bool:
        return bool(self._complete) or self._is_closing or self._unacked >= self._max_unacked

    async def _append(self, chunk: Chunk[int]) -> None:
        """Append a chunk. If it is refused, append its parts sequentially."""
        parts = [(run_key(self._run_name, chunk), chunk.records, chunk.marks)]
        while parts:
            key, records, numbers = parts.pop()
            failure, receipt = None, None
            try:
                receipt = await self._request(key, records, numbers[0])
            except Exception as error:
                failure = error
            async with self._changed:
                if receipt is not None:
                    for seq, number in enumerate(numbers, receipt.first_seq):
                        self._acknowledge(number, seq)
                elif failure is not None:
                    index = refused_index(failure, len(numbers))
                    self._fail(numbers if index is None else numbers[index : index + 1], failure)
                    if index is not None:
                        parts += self._without(index, records, numbers)

    def _without(
        self, index: int, records: bytes, numbers: Sequence[int]
    ) -> list[tuple[str, bytes, Sequence[int]]]:
        """Split a part at a refused record.

        Return a part with the records after it and a part with the records before it. An empty part
        is omitted.
        """
        each = msgspec.json.decode(records, type=list[msgspec.Raw])
        return [
            (
                part_key(self._run_name, numbers[part][0], numbers[part][-1]),
                msgspec.json.encode(each[part]),
                numbers[part],
            )
            for part in (slice(index + 1, None), slice(index))
            if numbers[part]
        ]

    async def _request(self, key: str, records: bytes, first: int) -> Receipt:
        """Send an append until it succeeds or the first of its records reaches its deadline."""
        body = {"records": msgspec.Raw(records)}
        call = calls.append(self._topic, body, key, self._caller.node)
        pending = self._pending.get(first)
        until = 0.0 if pending is None else pending.until
        attempts = Attempts(self._caller.retry, until)
        while True:
            try:
                once = partial(self._caller.once, call, until=until)
                receipt = await self._stop.interrupts(once, self._caller.pool.abort)
            except TopicsError as failure:
                pause_s = attempts.pause_after(failure)
                self._caller.report_pause(failure, pause_s)
                await self._stop.wait(pause_s)
                continue
            if receipt is None:
                raise ConnectionLost(f"{self._name} was closed")
            return receipt


def refused_index(failure: Exception, count: int) -> int | None:
    """Return the index of the record that caused the refusal of an append of ``count`` records, or
    None if that is unknown.
    """
    if not isinstance(failure, Invalid):
        return None
    index = failure.detail.get("index")
    if path := re.match(r"records\[(\d+)\]", str(failure.detail.get("field"))):  # a wrong type
        index = int(path[1])
    return index if isinstance(index, int) and 0 <= index < count else None

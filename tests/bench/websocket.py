"""What WebSocket frames cost. Run from the top: ``python -m tests.bench.websocket [--seconds
0.5]``.

A client's stream comes in reads of 64 KiB, as from a busy socket. Beside each row, in the same run
and on the same bytes: wsproto, which is what Hypercorn uses. ``x peer`` is the rate as a multiple
of the peer's.
"""

from __future__ import annotations

import argparse
import random
import struct
import time
from collections.abc import Callable
from functools import partial

from wsproto.connection import Connection, ConnectionType
from wsproto.events import TextMessage

from topics.formats.api.websocket_decoder import WebSocketDecoder
from topics.formats.api.websocket_frames import text_frame
from topics.formats.api.websocket_messages import Text

READ_BYTES = 64 * 1024
STREAM_BYTES = 4 << 20
MAX_BYTES = 32 << 20
ROUNDS = 5


def stream_of(size: int, text: str, fragments: int = 1) -> tuple[list[bytes], int]:
    """The reads of a client's stream of messages of about ``size`` bytes, and how many messages
    there are.
    """
    chance = random.Random(7)
    payload = (text * size).encode()[: size - size % len(text.encode())]
    count = max(STREAM_BYTES // (size + 8), 1)
    stream = b"".join(message(payload, chance, fragments) for _ in range(min(count, 20_000)))
    return [stream[at : at + READ_BYTES] for at in range(0, len(stream), READ_BYTES)], min(
        count, 20_000
    )


def message(payload: bytes, chance: random.Random, fragments: int) -> bytes:
    step = -(-len(payload) // fragments)
    parts = [payload[at : at + step] for at in range(0, len(payload), step)]
    return b"".join(
        frame(part, chance, first=not n, final=n == len(parts) - 1) for n, part in enumerate(parts)
    )


def frame(payload: bytes, chance: random.Random, *, first: bool, final: bool) -> bytes:
    """A masked frame, made without the code that is measured."""
    head, length, key = 0x80 * final | first, len(payload), chance.randbytes(4)
    if length <= 125:
        header = struct.pack(">BB", head, 0x80 | length)
    else:
        header = (
            struct.pack(">BBH", head, 0xFE, length)
            if length < 1 << 16
            else struct.pack(">BBQ", head, 0xFF, length)
        )
    mask = (key * (length // 4 + 1))[:length]
    return header + key + (int.from_bytes(payload) ^ int.from_bytes(mask)).to_bytes(length)


def ours(reads: list[bytes]) -> int:
    parser, messages = WebSocketDecoder(MAX_BYTES), 0
    for data in reads:
        events = parser.feed(data)
        messages += len(events)
        assert all(type(event) is Text for event in events[:1])
    return messages


def theirs(reads: list[bytes]) -> int:
    """As Hypercorn does it: the parts of a message are joined, and here encoded, for a server that
    handles bytes.
    """
    connection, messages, parts = Connection(ConnectionType.SERVER), 0, []
    for data in reads:
        connection.receive_data(data)
        for event in connection.events():
            assert isinstance(event, TextMessage)
            parts.append(event.data)
            if event.message_finished:
                "".join(parts).encode()
                parts.clear()
                messages += 1
    return messages


def seconds_of(seconds: float, *works: Callable[[], object]) -> list[float]:
    """Seconds a call, the best of some rounds, in which the works take turns: a machine's moods
    meet all of them.
    """
    best = [float("inf")] * len(works)
    for _ in range(ROUNDS):
        for at, work in enumerate(works):
            calls, began = 0, time.perf_counter()
            while (now := time.perf_counter()) < began + seconds / ROUNDS or not calls:
                work()
                calls += 1
            best[at] = min(best[at], (now - began) / calls)
    return best


def line(name: str, messages: int, size: int, took: float, peer_took: float) -> None:
    print(
        f"{name:<38}{messages / took:>14,.0f}{size / took / 1e6:>10,.0f}{peer_took / took:>9.1f}",
        flush=True,
    )


def parsing(seconds: float) -> None:
    for name, size, text, fragments in (
        ("text of 8 bytes", 8, "x", 1),
        ("text of 60 bytes", 60, "x", 1),
        ("text of 120 bytes", 120, "x", 1),
        ("text of 120 bytes, not ASCII", 120, "é", 1),
        ("text of 400 bytes", 400, "x", 1),
        ("text of 4 KB", 4096, "x", 1),
        ("text of 4 KB in 4 fragments", 4096, "x", 4),
        ("text of 64 KB", 65_536, "x", 1),
        ("text of 1 MB", 1 << 20, "x", 1),
        ("text of 1 MB, not ASCII", 1 << 20, "é", 1),
    ):
        reads, count = stream_of(size, text, fragments)
        assert ours(reads) == theirs(reads) == count
        total = sum(map(len, reads))
        line(name, count, total, *seconds_of(seconds, partial(ours, reads), partial(theirs, reads)))


def cuts() -> None:
    """One message of 16 MiB: seconds must not depend much on how it is cut."""
    reads, _ = stream_of(16 << 20, "x")
    stream = b"".join(reads)
    for step in (256, 1024, 16_384, 262_144, len(stream)):
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        (took,) = seconds_of(0, partial(ours, pieces))
        print(
            f"16 MiB in reads of {step:>10,} bytes    {took * 1e3:>10,.0f}"
            f" ms{len(stream) / took / 1e6:>10,.0f} MB/s",
            flush=True,
        )


def encoding(seconds: float) -> None:
    payload = b"x" * 120
    text = payload.decode()
    connection = Connection(ConnectionType.SERVER)

    def peer() -> None:
        for _ in range(1000):
            connection.send(TextMessage(data=text))

    def frames() -> None:
        for _ in range(1000):
            text_frame(payload)

    frames_took, peer_took = seconds_of(seconds, frames, peer)
    line("text_frame of 120 bytes", 1000, 122_000, frames_took, peer_took)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    chosen = options.parse_args()
    print(f"{'':<38}{'messages/s':>14}{'MB/s':>10}{'x peer':>9}")
    parsing(chosen.seconds)
    encoding(chosen.seconds)
    cuts()


if __name__ == "__main__":
    main()

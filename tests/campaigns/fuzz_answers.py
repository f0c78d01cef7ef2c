"""What a fuzzed connection is answered: sent whole, heard to its end, and taken apart."""

from __future__ import annotations

import errno
import json
import random
import time
from typing import Any

from tests.campaigns.fuzz_inputs import Case
from tests.support.api import Wire
from tests.support.ws import TEXT, Socket

END_S = 15.0  # for a connection to come to its end after its client has said all


def spoken(address: tuple[str, int], sent: Case, source: random.Random) -> bytes:
    """Say it all on a connection of its own, close that side, and hear all that comes."""
    began = time.monotonic()
    slowly = source.random() < 0.3
    with Wire(address, timeout_s=END_S) as wire:
        try:
            for piece in sent.pieces():
                wire.send(piece)
                if slowly:
                    time.sleep(0.0005)  # so that the pieces arrive as such
            wire.half_close()
        except OSError as error:  # refused before it was sent whole
            if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
                raise
        heard = wire.rest()
    took = time.monotonic() - began
    assert took < END_S, f"the connection took {took:.1f} s to end"
    return heard


def answers_of(heard: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """The answers on a connection. What follows a 101, or has no length, belongs to that answer."""
    found = []
    while heard:
        head, end, heard = heard.partition(b"\r\n\r\n")
        assert end, f"half an answer: {head[:300]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status = first.split(" ", 2)[:2]
        assert version == "HTTP/1.1", first
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = (
            len(heard)
            if status == "101"
            else int(fields.get("content-length", 0 if status == "100" else len(heard)))
        )
        assert length <= len(heard), f"an answer that is cut short: {heard[:300]!r}"
        found.append((int(status), fields, heard[:length]))
        heard = heard[length:]
    return found


def check_envelope(status: int, fields: dict[str, str], body: bytes) -> None:
    """§0.5, for whatever is not a success."""
    assert fields.get("content-type") == "application/json", (
        f"{status} without JSON: {fields} {body[:300]!r}"
    )
    document = json.loads(body)
    assert document.keys() - {"performance"} == {"error"}, document
    assert {"code", "message"} <= document["error"].keys() <= {"code", "message", "detail"}, (
        document
    )


class _Heard(Socket):
    """Frames that have already come."""

    def __init__(self, heard: bytes) -> None:
        self._buffer = bytearray(heard)

    def _receive(self) -> bool:
        return False


def messages_of(heard: bytes) -> list[dict[str, Any]]:
    """The text messages among a server's frames, each of which must be whole and well-formed."""
    frames, found = _Heard(heard), []
    while frames._buffer:
        frame = frames.receive()
        assert frame.fin, frame
        assert frame.code != 1011 or frame.opcode != 8, f"internal error: {frame}"
        if frame.opcode == TEXT:
            found.append(json.loads(frame.payload))
    return found

"""Well-formed and broken streams of WebSocket frames for Hypothesis, and their events as
`WebSocketFrameReader` returns them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import strategies as st
from websockets.frames import Close, Frame

from tests.support.ws import frame_bytes
from topics.formats.api.websocket_frames import WebSocketFrameReader

MAX_BYTES = 1 << 20


KEY = bytes.fromhex("37fa213d")  # of the examples in RFC 6455 §5.7


UTF8 = "aé€😀"


PAYLOADS = st.one_of(
    st.text(max_size=20).map(str.encode),
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"",
            b"x" * 125,
            b"x" * 126,
            b"y" * 1023,
            b"z" * 1025,
            "é".encode() * 700,
            b"a" * 65_535,
            b"b" * 65_537,
        ]
    ),
)


CLOSES = st.one_of(
    st.just(b""),
    st.binary(max_size=6),
    st.builds(lambda code, why: code.to_bytes(2) + why, st.integers(990, 5010), PAYLOADS),
)


def frame(first: int, payload: bytes = b"", key: bytes = KEY) -> bytes:
    """Return a client's frame with these bits in its first byte."""
    opcode, rsv = first & 0x0F, first & 0x70
    return frame_bytes(opcode, payload, fin=first >= 0x80, rsv=rsv, mask=key)


@st.composite
def chunks_of_a_message(draw: st.DrawFn) -> bytes:
    """Draw a message in fragments with control frames between them. Some messages lack their end
    or their start.
    """
    opcode = draw(st.sampled_from([1, 1, 2, 0]))
    parts = draw(
        st.lists(
            st.one_of(PAYLOADS, st.sampled_from([bytes([byte]) for byte in UTF8.encode()])),
            max_size=5,
        )
    )
    out = []
    for at, part in enumerate(parts):
        fin = 0x80 if at == len(parts) - 1 else 0
        out.append(
            frame(fin | (0 if at else opcode), part, draw(st.binary(min_size=4, max_size=4)))
        )
        out.append(draw(st.sampled_from([b"", b"", frame(0x89, b"hi"), frame(0x8A)])))
    return b"".join(out)


FRAMES = st.one_of(
    st.builds(
        lambda payload, key: frame(0x81, payload, key), PAYLOADS, st.binary(min_size=4, max_size=4)
    ),
    st.builds(
        lambda first, payload: frame(first, payload[:125]),
        st.sampled_from([0x81, 0x82, 0x89, 0x8A]),
        PAYLOADS,
    ),
    chunks_of_a_message(),
    st.builds(lambda payload: frame(0x88, payload[:125]), CLOSES),
    st.builds(frame, st.integers(0, 255), PAYLOADS),
    st.binary(max_size=12),
)


STREAMS = st.lists(FRAMES, max_size=8).map(b"".join)


def events_of(
    stream: bytes, cuts: Iterable[int] = (), max_message_bytes: int = MAX_BYTES
) -> list[Frame | Close]:
    """Return the frames of a stream that is split at these offsets, and the failure that closes
    it.
    """
    reader, found = WebSocketFrameReader(max_message_bytes), list[Frame | Close]()
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in pairwise(bounds):
        found += reader.feed(stream[start:end])
    return found if reader.failure is None else [*found, reader.failure]


def byte_by_byte(stream: bytes, max_message_bytes: int = MAX_BYTES) -> list[Frame | Close]:
    """Return the events if each byte arrives alone."""
    return events_of(stream, range(len(stream)), max_message_bytes)

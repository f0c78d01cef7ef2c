"""The layout of a message, and a result of the decoder for any bytes and any fragments."""

from __future__ import annotations

import re
import struct
from itertools import accumulate, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wire import encode
from topics.formats.wire import message
from topics.formats.wire.message import ARENA, ERROR, HEADER, RELEASE, Assembler, Message

SUBJECTS = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=40)
IDS, BODIES = st.integers(0, 2**64 - 1), st.binary(max_size=60)
MESSAGES = st.lists(
    st.builds(Message, IDS, st.integers(0, 7), SUBJECTS, BODIES, BODIES), max_size=6
)


def encoded(one: Message) -> bytes:
    return encode(one.message_id, one.subject, bytes(one.payload), one.attachment, one.flags)


def test_the_bytes_of_a_message_never_change() -> None:
    assert encode(0x0102, "rpc/append", b"\xa1\x61\x74", b"{}", ARENA).hex(" ", -8) == (
        "2700000003000000 0201000000000000 0a00020000000000 7270632f61707065 6e64a161747b7d"
    )
    assert (ERROR, ARENA, RELEASE) == (1, 2, 4)
    assert len(encode(7, "", b"")) == HEADER.size


def test_the_table_in_the_docstring_matches_the_struct() -> None:
    rows = re.findall(r"^    (\d+) +(\d+) +(\w+)", message.__doc__ or "", re.MULTILINE)
    codes = {4: "I", 8: "Q", 2: "H"}
    assert "<" + "".join(codes[int(size)] for _, size, _ in rows) == HEADER.format
    *offsets, end = accumulate((int(size) for _, size, _ in rows), initial=0)
    assert [int(at) for at, _, _ in rows] == offsets
    assert end == HEADER.size


def test_a_long_attachment_is_a_view_and_a_short_one_is_copied() -> None:
    body = b"x" * (message.COPIED_MAX_BYTES + 1)
    long, short = Assembler().feed(encode(1, "a", b"p", body) + encode(2, "a", b"p", b"y"))
    assert (type(long.attachment), long.attachment) == (memoryview, body)
    assert (type(short.attachment), short.attachment) == (bytes, b"y")


def test_a_message_beyond_the_layout_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnicodeEncodeError):
        encode(1, "rpc/\u00e4", b"")
    with pytest.raises(ValueError, match="does not fit"):
        encode(1, "s" * 65_536, b"")
    monkeypatch.setattr(message, "MAX_MESSAGE_BYTES", 100)
    assert len(encode(1, "", b"p" * 76)) == 100
    with pytest.raises(ValueError, match="101 bytes"):
        encode(1, "", b"p" * 77)


@given(MESSAGES, st.lists(st.integers(0, 500)))
def test_messages_are_decoded_as_soon_as_they_are_complete_for_any_fragments(
    messages: list[Message], cuts: list[int]
) -> None:
    ends = [*accumulate(len(encoded(one)) for one in messages)]
    stream = b"".join(map(encoded, messages))
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assembler, found = Assembler(), []
    for start, end in pairwise(bounds):
        found += assembler.feed(stream[start:end])
        assert found == messages[: sum(message_end <= end for message_end in ends)]
    assert not assembler.damaged


@given(MESSAGES, st.binary(max_size=200))
def test_any_bytes_after_valid_messages_do_not_affect_them(
    messages: list[Message], junk: bytes
) -> None:
    stream = b"".join(map(encoded, messages)) + junk
    found = Assembler().feed(stream)
    assert found[: len(messages)] == messages
    assert stream.startswith(b"".join(map(encoded, found)))


@pytest.mark.parametrize(
    ("at", "code", "value"),
    [
        pytest.param(0, "<I", 23, id="shorter than a header"),
        pytest.param(0, "<I", 30, id="shorter than its parts"),
        pytest.param(0, "<I", message.MAX_MESSAGE_BYTES + 1, id="longer than any message"),
        pytest.param(4, "<I", 2**32 - 1, id="payload beyond the end"),
        pytest.param(16, "<H", 65_535, id="subject beyond the end"),
        pytest.param(18, "<H", 8, id="unknown flag"),
        pytest.param(20, "<I", 1, id="reserved not zero"),
        pytest.param(25, "<B", 0x80, id="subject outside ASCII"),
    ],
)
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_contradictory_message_is_damage(
    at: int, code: str, value: int, is_complete: bool
) -> None:
    good, bad = encode(1, "a", b"p"), bytearray(encode(2, "rpc/append", b"payload", b"attachment"))
    struct.pack_into(code, bad, at, value)
    assembler = Assembler()
    assert len(assembler.feed(good + bad[: len(bad) if is_complete else HEADER.size])) == 1
    assert assembler.damaged == (is_complete or at < HEADER.size)


def test_a_large_message_is_not_copied_for_every_fragment(monkeypatch: pytest.MonkeyPatch) -> None:
    complete, parsed_lengths = encode(1, "a", b"", b"z" * 100_000), []

    def unpack_from(data: bytes, start: int) -> tuple[int, ...]:
        parsed_lengths.append(len(data))
        return HEADER.unpack_from(data, start)

    monkeypatch.setattr(message, "HEADER", SimpleNamespace(unpack_from=unpack_from))
    assembler = Assembler()
    for at in range(0, len(complete), 100):
        found = assembler.feed(complete[at : at + 100])
    assert [one.attachment for one in found] == [b"z" * 100_000]
    assert parsed_lengths == [100, len(complete)]

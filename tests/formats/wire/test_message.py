"""The layout of a message, and that a decoder answers for any bytes and any cut."""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.formats.wire import message
from topics.formats.wire.message import (
    ARENA,
    DAMAGED,
    HEADER,
    Assembler,
    Flag,
    Message,
    announced_length,
    decode_all,
    encode,
)

SUBJECTS = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=40)
MESSAGES = st.lists(
    st.tuples(
        st.integers(0, 2**64 - 1),
        SUBJECTS,
        st.binary(max_size=60),
        st.binary(max_size=60),
        st.integers(0, 7),
    ),
    max_size=6,
)


def as_decoded(messages: list[tuple[int, str, bytes, bytes, int]]) -> list[Message]:
    return [
        Message(message_id, flags, subject, payload, attachment)
        for message_id, subject, payload, attachment, flags in messages
    ]


def stream_of(messages: list[tuple[int, str, bytes, bytes, int]]) -> bytes:
    return b"".join(
        encode(message_id, subject, payload, rest, flags)
        for message_id, subject, payload, rest, flags in messages
    )


def test_the_bytes_of_a_message_are_these() -> None:
    assert encode(0x0102, "rpc/append", b"\xa1\x61\x74", b"{}", ARENA).hex(" ", -8) == (
        "2700000003000000 0201000000000000 0a00020000000000 7270632f61707065 6e64a161747b7d"
    )


def test_the_table_in_the_docstring_is_the_struct() -> None:
    rows = re.findall(r"^    (\d+) +(\d+) +(\w+)", message.__doc__ or "", re.MULTILINE)
    codes = {4: "I", 8: "Q", 2: "H"}
    assert "<" + "".join(codes[int(size)] for _, size, _ in rows) == HEADER.format
    offsets = [0]
    for _, size, _ in rows:
        offsets.append(offsets[-1] + int(size))
    assert [int(at) for at, _, _ in rows] == offsets[:-1]
    assert offsets[-1] == HEADER.size


def test_an_empty_message_is_its_header() -> None:
    assert len(encode(7, "", b"")) == HEADER.size
    assert decode_all(encode(7, "", b"")) == ([Message(7, 0, "", b"", b"")], HEADER.size)


def test_a_message_is_read_only() -> None:
    one = Message(1, 0, "rpc/diff", b"", b"")
    with pytest.raises(AttributeError):
        one.message_id = 2  # type: ignore[misc]


def test_a_long_attachment_is_a_view_and_a_short_one_bytes() -> None:
    [long, short], _ = decode_all(
        encode(1, "a", b"p", b"x" * (message.COPIED_MAX_BYTES + 1)) + encode(2, "a", b"p", b"y")
    )
    assert isinstance(long.attachment, memoryview)
    assert long.attachment == b"x" * (message.COPIED_MAX_BYTES + 1)
    assert short.attachment == b"y"
    assert isinstance(short.attachment, bytes)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_an_attachment_may_be_any_buffer(kind: type) -> None:
    assert encode(1, "s", b"p", kind(b"abc")) == encode(1, "s", b"p", b"abc")


def test_a_subject_outside_ascii_or_too_long_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode(1, "rpc/ä", b"")
    with pytest.raises(ValueError, match="does not fit"):
        encode(1, "s" * 65_536, b"")


def test_a_message_above_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "MAX_MESSAGE_BYTES", 100)
    assert len(encode(1, "", b"p" * 76)) == 100
    with pytest.raises(ValueError, match="101 bytes"):
        encode(1, "", b"p" * 77)


def test_made_up_subjects_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "_SUBJECTS", {})
    monkeypatch.setattr(message, "SUBJECTS_MAX", 3)
    found, _ = decode_all(b"".join(encode(n, f"app/{n}", b"") for n in range(10)))
    assert [one.subject for one in found] == [f"app/{n}" for n in range(10)]
    assert len(message._SUBJECTS) == 3


@given(MESSAGES, st.data())
def test_any_cut_gives_a_prefix(
    messages: list[tuple[int, str, bytes, bytes, int]], data: st.DataObject
) -> None:
    stream = stream_of(messages)
    cut = data.draw(st.integers(0, len(stream)))
    found, consumed = decode_all(stream[:cut])
    assert found == as_decoded(messages)[: len(found)]
    assert stream_of(messages[: len(found)]) == stream[:consumed]
    if len(found) < len(messages):
        assert len(stream_of(messages[: len(found) + 1])) > cut, "whatever is whole is delivered"


@given(MESSAGES, st.lists(st.integers(0, 500)))
def test_an_assembler_finds_the_messages_wherever_the_stream_is_cut(
    messages: list[tuple[int, str, bytes, bytes, int]], cuts: list[int]
) -> None:
    stream = stream_of(messages)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assembler = Assembler()
    found = [one for start, end in pairwise(bounds) for one in assembler.feed(stream[start:end])]
    assert found == as_decoded(messages)
    assert not assembler.damaged


@given(st.binary(max_size=200))
def test_any_bytes_give_an_answer(junk: bytes) -> None:
    found, consumed = decode_all(junk)
    assert 0 <= consumed <= len(junk)
    assert (
        stream_of(
            [
                (
                    one.message_id,
                    one.subject,
                    bytes(one.payload),
                    bytes(one.attachment),
                    one.flags,
                )
                for one in found
            ]
        )
        == junk[:consumed]
    )
    Assembler().feed(junk)


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
    ],
)
def test_a_header_that_cannot_be_true_is_damage(at: int, code: str, value: int) -> None:
    good, bad = encode(1, "a", b"p"), bytearray(encode(2, "rpc/append", b"payload", b"attachment"))
    struct.pack_into(code, bad, at, value)
    found, consumed = decode_all(good + bad)
    assert [one.message_id for one in found] == [1]
    assert consumed == len(good)
    assert announced_length(bytes(bad)) == DAMAGED
    assembler = Assembler()
    assert len(assembler.feed(good + bad)) == 1
    assert assembler.damaged


def test_a_subject_outside_ascii_in_the_stream_is_damage() -> None:
    bad = bytearray(encode(1, "abc", b""))
    bad[25] = 0x80
    assembler = Assembler()
    assert assembler.feed(bytes(bad)) == []
    assert assembler.damaged


def test_a_header_that_is_not_whole_announces_nothing_yet() -> None:
    stream = encode(1, "abc", b"payload")
    assert [announced_length(stream[:n]) for n in (0, 1, 23)] == [0, 0, 0]
    assert announced_length(stream[:24]) == len(stream)


def test_a_large_message_is_not_copied_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encode(1, "a", b"", b"z" * 100_000)
    decoded: list[int] = []

    def counting(data: bytes) -> tuple[list[Message], int]:
        decoded.append(len(data))
        return decode_all(data)

    monkeypatch.setattr(message, "decode_all", counting)
    assembler = Assembler()
    for at in range(0, len(whole), 100):
        found = assembler.feed(whole[at : at + 100])
    assert [one.attachment for one in found] == [b"z" * 100_000]
    assert decoded == [100, len(whole)]


def test_flags_keep_their_numbers() -> None:
    assert [(flag.name, flag.value) for flag in Flag] == [
        ("ERROR", 1),
        ("ARENA", 2),
        ("RELEASE", 4),
    ]

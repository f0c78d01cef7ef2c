"""Decoding: strict JSON bodies to typed values. Unknown fields are ignored, payloads stay raw.

The decoder checks grammar and types. It does not check UTF-8 within raw values, nor the depth of
nesting: that is done here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.refusals import refusal
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.buffers import Buffer
from topics.formats.json_text import json_bytes

Body = TypeVar("Body", bound=msgspec.Struct)

IGNORED_MAX = 64
IGNORED_CHARACTERS = 128
_patch = msgspec.json.Decoder(TopicConfigPatch)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_BAD_BODY = (UnicodeDecodeError, msgspec.MsgspecError, RecursionError)


@contextmanager
def refusing_bad_bodies() -> Iterator[None]:
    """Turn what decoders raise into `InvalidRequest`."""
    try:
        yield
    except _BAD_BODY as error:
        raise _refusal(error) from error


def _refusal(error: Exception, body: Buffer = b"") -> InvalidRequest:
    if isinstance(error, UnicodeDecodeError):
        at = error.start
        return InvalidRequest(f"the body is not valid UTF-8: byte {at}", offset=at)
    if isinstance(error, msgspec.MsgspecError):
        return refusal(error, body)
    return InvalidRequest("the body is nested too deeply")


def decode(parse: Callable[[Buffer], Body], body: Buffer) -> Body:
    """A body as ``parse`` gives it, valid UTF-8 throughout. Raises `InvalidRequest`."""
    try:  # not refusing_bad_bodies(): it would cost as much again
        # The decoder does not look into raw values: one bad byte would spoil every reader's JSON.
        if not (isinstance(body, bytes) and body.isascii()):
            str(body, "utf-8")
        return parse(body)
    except _BAD_BODY as error:
        raise _refusal(error, body) from error


def ignored_in(body: Buffer, known: type[msgspec.Struct]) -> bytes:
    """The member ``ignored`` of an answer: the names of a body's fields that ``known`` lacks, at
    most IGNORED_MAX of them, each cut to IGNORED_CHARACTERS. Empty when there are none.
    """
    names = (name for name in _members.decode(body or b"{}") if name not in known.__struct_fields__)
    told = [name[:IGNORED_CHARACTERS] for name in islice(names, IGNORED_MAX)]
    return b',"ignored":' + json_bytes(told) if told else b""


def decode_config(body: Buffer) -> TopicConfigPatch:
    """Body of a topic PUT; an empty body names no field."""
    return decode(_patch.decode, body or b"{}")

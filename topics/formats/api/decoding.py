"""Decoding of JSON bodies to typed values. Unknown fields are ignored, and payloads stay raw bytes.

The decoder (msgspec) checks the grammar and the types. It does not check whether raw values are
valid UTF-8 or how deeply they are nested, so this package does. This module also translates the
decoder's
errors, which name Python types: ``Expected `int | null`, got `str` - at `$.priority```. The
translated error names the field, the expected type and the received type. ``detail.field`` is the
path of the field without the leading ``$.``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.surrogates import SEARCH_MAX_BYTES, lone_surrogate
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
    """Convert the exceptions of decoders to `InvalidRequest`."""
    try:
        yield
    except _BAD_BODY as error:
        raise _refusal(error) from error


def _refusal(error: Exception, body: Buffer = b"") -> InvalidRequest:
    if isinstance(error, UnicodeDecodeError):
        at = error.start
        return InvalidRequest(f"the body is not valid UTF-8: byte {at}", offset=at)
    if isinstance(error, msgspec.MsgspecError):
        return _of_decoder(error, body)
    return InvalidRequest("the body is nested too deeply")


def decode(parse: Callable[[Buffer], Body], body: Buffer) -> Body:
    """Decode a body with ``parse``, and check that all of it is valid UTF-8.

    Raises `InvalidRequest`.
    """
    try:  # `refusing_bad_bodies` is not used here, because it would double the time.
        # The decoder does not check raw values. One invalid byte would make the JSON of every
        # reader invalid.
        if not (isinstance(body, bytes) and body.isascii()):
            str(body, "utf-8")
        return parse(body)
    except _BAD_BODY as error:
        raise _refusal(error, body) from error


def ignored_in(body: Buffer, known: type[msgspec.Struct]) -> bytes:
    """Render the member ``ignored`` of a response: the names of a body's fields that are unknown.

    At most IGNORED_MAX names are included, each truncated to IGNORED_CHARACTERS. The result is
    empty if all fields are known.
    """
    names = (name for name in _members.decode(body or b"{}") if name not in known.__struct_fields__)
    shown = [name[:IGNORED_CHARACTERS] for name in islice(names, IGNORED_MAX)]
    return b',"ignored":' + json_bytes(shown) if shown else b""


def decode_config(body: Buffer) -> TopicConfigPatch:
    """Decode the body of a topic PUT. An empty body sets no field."""
    return decode(_patch.decode, body or b"{}")


# Refusals

SHOWN_MAX_CHARS = 100  # maximum length of an invalid value that an error message repeats

_LINE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_CHOICE = re.compile(r"Invalid enum value (.*)", re.DOTALL)
_KINDS: Mapping[str, str] = {
    "int": "an integer",
    "float": "a number with a fraction or exponent",
    "str": "a string",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _choices() -> dict[str, Sequence[str]]:
    """Return the permitted values of each field that accepts one of a few words."""
    words: dict[str, Sequence[str]] = {}
    for name, hint in get_type_hints(TopicConfigPatch).items():
        for kind in (hint, *get_args(hint)):
            if get_origin(kind) is Literal:
                words[name] = get_args(kind)
    return words


CHOICES = _choices()


def _of_decoder(error: Exception, body: Buffer) -> InvalidRequest:
    message = _shortened(str(error))
    found = _LINE.fullmatch(message)
    what, path = (found["what"], found["path"]) if found else (message, None)
    return _wrong_value(what, path) or _wrong_json(what, path, body)


def _wrong_value(what: str, path: str | None) -> InvalidRequest | None:
    """Return the error for valid JSON with an invalid value, or None for any other error."""
    detail: dict[str, Any] = {"field": path} if path else {}
    subject = path or "the body"
    allowed = CHOICES.get((path or "").rpartition(".")[2])
    expected, choice = _EXPECTED.fullmatch(what), _CHOICE.fullmatch(what)
    if allowed and (expected or choice):
        given = _kinds(expected[2]) if expected else choice[1] if choice else ""
        return InvalidRequest(
            f"{subject} must be one of {', '.join(allowed)}, not {given}",
            **detail,
            allowed=list(allowed),
        )
    if expected:
        kinds = f"{_kinds(expected[1])}, not {_kinds(expected[2])}"
        return InvalidRequest(f"{subject} must be {kinds}", **detail)
    if missing := _MISSING.fullmatch(what):
        where = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"{where} is required", field=where)
    return None


def _wrong_json(what: str, path: str | None, body: Buffer) -> InvalidRequest:
    """Return the error for a body that is not JSON, or for any other error of the decoder."""
    if (offset := lone_surrogate(body)) is not None:
        return InvalidRequest(
            f"an unpaired surrogate at byte {offset} of the body, which is not a character",
            offset=offset,
        )
    if what == "Input data was truncated":
        searched = 0 < len(body) <= SEARCH_MAX_BYTES
        or_half = "" if searched else " or contains an unpaired surrogate, which is not a character"
        return InvalidRequest(f"the body ends within its JSON{or_half}")
    if what.startswith("JSON is malformed: "):
        return InvalidRequest(f"the body is not JSON: {what.removeprefix('JSON is malformed: ')}")
    detail = {"field": path} if path else {}
    return InvalidRequest(f"{path or 'the body'}: {what[:1].lower()}{what[1:]}", **detail)


def _shortened(message: str) -> str:
    """Shorten the decoder's error, which repeats an invalid value of any length."""
    if len(message) <= 2 * SHOWN_MAX_CHARS:
        return message
    path = message.rfind(" - at `", len(message) - SHOWN_MAX_CHARS)
    return f"{message[:SHOWN_MAX_CHARS]}…{message[path:] if path >= 0 else ''}"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))

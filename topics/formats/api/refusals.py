"""Refusals of request bodies: what a JSON decoder says, in the words of the API.

The decoder's lines (``Expected `int | null`, got `str` - at `$.priority```) speak of Python's
types. A refusal names the field, what it must be and what came instead; ``detail.field`` is the
path of the field without the leading ``$.``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from topics.errors import InvalidRequest
from topics.formats.api.surrogates import SEARCH_MAX_BYTES, lone_surrogate
from topics.formats.api.topic_config import TopicConfigPatch

SHOWN_MAX = 100  # characters of what was sent that a refusal repeats

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
    """The values of every field that takes one of a few words."""
    words: dict[str, Sequence[str]] = {}
    for name, hint in get_type_hints(TopicConfigPatch).items():
        for kind in (hint, *get_args(hint)):
            if get_origin(kind) is Literal:
                words[name] = get_args(kind)
    return words


CHOICES = _choices()


def refusal(error: Exception, body: bytes | bytearray | memoryview = b"") -> InvalidRequest:
    """What the decoder said about ``body``, for a person."""
    said = _shortened(str(error))
    found = _LINE.fullmatch(said)
    what, path = (found["what"], found["path"]) if found else (said, None)
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
    if (place := lone_surrogate(body)) is not None:
        return InvalidRequest(
            f"half of a surrogate pair at byte {place} of the body: it stands for no character",
            offset=place,
        )
    if what == "Input data was truncated":
        searched = 0 < len(body) <= SEARCH_MAX_BYTES
        or_half = "" if searched else ", or holds half of a surrogate pair: that is no character"
        return InvalidRequest(f"the body ends in the middle of its JSON{or_half}")
    if what.startswith("JSON is malformed: "):
        return InvalidRequest(f"the body is not JSON: {what.removeprefix('JSON is malformed: ')}")
    return InvalidRequest(f"{subject}: {what[:1].lower()}{what[1:]}", **detail)


def _shortened(said: str) -> str:
    """The decoder repeats a wrong word whole, and that may be most of a long body."""
    if len(said) <= 2 * SHOWN_MAX:
        return said
    path = said.rfind(" - at `", len(said) - SHOWN_MAX)
    return f"{said[:SHOWN_MAX]}…{said[path:] if path >= 0 else ''}"


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))

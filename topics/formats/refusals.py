"""What a JSON decoder says about a body, in the words of the API: the field, what it must be, what came instead.

The decoder's own lines (``Expected `int | null`, got `str` - at `$.priority```) speak of Python's types. ``detail.field`` is the
path of the field as the text shows it, without the leading ``$.``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from topics.errors import InvalidRequest
from topics.formats.surrogates import SEARCH_MAX_BYTES, lone_surrogate
from topics.formats.topic_config import TopicConfigPatch

_LINE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
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
    hints = get_type_hints(TopicConfigPatch)
    kinds = {name: [kind, *get_args(kind)] for name, kind in hints.items()}
    return {name: get_args(kind) for name, found in kinds.items() for kind in found if get_origin(kind) is Literal}


CHOICES = _choices()


def refusal(error: Exception, body: bytes | bytearray | memoryview = b"") -> InvalidRequest:
    """What the decoder said about ``body``, for a person."""
    found = _LINE.fullmatch(str(error))
    what, path = (found["what"], found["path"]) if found else (str(error), None)
    detail: dict[str, Any] = {"field": path} if path else {}
    subject = path or "the body"
    allowed = CHOICES.get((path or "").rpartition(".")[2])
    expected, choice = _EXPECTED.fullmatch(what), _CHOICE.fullmatch(what)
    if allowed and (expected or choice):
        given = _kinds(expected[2]) if expected else choice[1] if choice else ""
        return InvalidRequest(f"{subject} must be one of {', '.join(allowed)}, not {given}", **detail, allowed=list(allowed))
    if expected:
        return InvalidRequest(f"{subject} must be {_kinds(expected[1])}, not {_kinds(expected[2])}", **detail)
    if missing := _MISSING.fullmatch(what):
        where = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequest(f"{where} is required", field=where)
    if (place := lone_surrogate(body)) is not None:
        return InvalidRequest(f"half of a surrogate pair at byte {place} of the body: it stands for no character", offset=place)
    if what == "Input data was truncated":
        half = "" if 0 < len(body) <= SEARCH_MAX_BYTES else ", or holds half of a surrogate pair, which stands for no character"
        return InvalidRequest(f"the body ends in the middle of its JSON{half}")
    if what.startswith("JSON is malformed: "):
        return InvalidRequest(f"the body is not JSON: {what.removeprefix('JSON is malformed: ')}")
    return InvalidRequest(f"{subject}: {what[:1].lower()}{what[1:]}", **detail)


def _kinds(names: str) -> str:
    return " or ".join(_KINDS.get(name, name) for name in names.split(" | "))

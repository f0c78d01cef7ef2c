"""Delete body (§5): which records of a topic are to be deleted."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from topics.errors import InvalidRequest
from topics.formats.api.decoding import decode
from topics.formats.api.limits import MATCH_MAX_BYTES, check_text, check_u64
from topics.formats.buffers import Buffer


class TagMatch(NamedTuple):
    """Which tags a delete (§5) or a router (§6) is about: ``Eq`` the text itself, ``Glob`` every
    tag that begins with it.
    """

    op: Literal["Eq", "Glob"]
    text: str


class DeleteBody(msgspec.Struct):
    """Body of ``POST /v0/topics/:topic/delete`` (§5), as it was sent."""

    before_seq: int | None = None
    match: Any = None


class DeleteRequest(NamedTuple):
    """A checked delete: what is below ``before_seq`` and matches, each if given."""

    before_seq: int | None
    match: TagMatch | None


_delete = msgspec.json.Decoder(DeleteBody)


def decode_delete(body: Buffer) -> DeleteRequest:
    """Body of a delete. Raises `InvalidRequest`."""
    asked = decode(_delete.decode, body or b"{}")
    if asked.before_seq is not None:
        check_u64("before_seq", asked.before_seq)
    match = None if asked.match is None else tag_match(asked.match)
    if asked.before_seq is None and match is None:
        raise InvalidRequest("before_seq or match is required")
    return DeleteRequest(asked.before_seq, match)


def tag_match(given: Any, field: str = "match", max_bytes: int = MATCH_MAX_BYTES) -> TagMatch:
    """The tags that a ``match`` names, which is there; or another ``field`` of the same language.
    Raises `InvalidRequest`.
    """
    match = _tag_match(given, field)
    check_text(field, match.text, max_bytes)
    return match


def _tag_match(given: Any, field: str) -> TagMatch:
    if isinstance(given, str):
        return TagMatch("Eq", given)
    if (
        not isinstance(given, list)
        or len(given) != 3
        or given[0] != "tag"
        or not isinstance(given[2], str)
    ):
        raise InvalidRequest(
            f'{field} must be a tag, or ["tag", "Eq", tag], or ["tag", "Glob", prefix + "*"]',
            field=field,
        )
    _, op, text = given
    if op == "Eq":
        return TagMatch("Eq", text)
    if op != "Glob":
        raise InvalidRequest(f"{field} knows Eq and Glob", field=field)
    if not text.endswith("*") or "*" in text[:-1]:
        raise InvalidRequest("a Glob has one *, at its end", field=field)
    return TagMatch("Glob", text[:-1])

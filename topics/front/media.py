"""Content negotiation: media types and codings of requests and responses (RFC 9110 §8, §12)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from topics.errors import UnsupportedMediaType
from topics.formats.api.request_heads import HeadFields, list_members
from topics.formats.api.response_heads import JSON

JSON_MEDIA = re.compile(
    rb"application/json[ \t]*(?:;[ \t]*charset[ \t]*=[ \t]*\"?utf-8\"?[ \t]*)?;?", re.IGNORECASE
)
ACCEPT_PARAMETERS_MAX = 16  # maximum number of parameters of a media range in an Accept field
_PLAIN_TEXT = (b"text/plain", b"text/*", b"*/*")
_EVENT_STREAM = (b"text/event-stream", b"text/*", b"*/*")
GZIP_NAMES = ([b"gzip"], [b"x-gzip"])

# The quantifiers are possessive. Otherwise the matcher would try every split between two adjacent
# runs of blanks.
CODING = re.compile(
    rb"[ \t]*+([!#$%&'*+\-.^_`|~0-9A-Za-z]++)[ \t]*+(?:;[ \t]*+[qQ]=([0-9.]{1,5}))?[ \t]*+"
)


def check_body_media(fields: HeadFields) -> tuple[bool, UnsupportedMediaType | None]:
    """Return whether a request body is gzipped, and the error for its type or coding, or None.

    The body must be JSON in UTF-8, with the coding gzip or none.
    """
    wrong = None
    media = fields.values(b"content-type")
    if len(media) != 1 or JSON_MEDIA.fullmatch(media[0]) is None:
        wrong = UnsupportedMediaType("Content-Type must be application/json (utf-8)")
    named = list_members(fields.joined(b"content-encoding"))
    codings = [coding for coding in named if coding not in (b"", b"identity")]
    if codings and codings not in GZIP_NAMES:
        wrong = wrong or UnsupportedMediaType("Content-Encoding must be gzip or absent")
    return bool(codings), wrong


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Return whether an Accept-Encoding value permits gzip (RFC 9110 §12.5.3).

    A malformed member permits nothing.
    """
    weights: dict[bytes, float] = {}
    for part in list_members(accept_encoding):
        coding = CODING.fullmatch(part)
        if coding is not None:
            weights[coding[1]] = _weight(coding[2])
    return weights.get(b"gzip", weights.get(b"*", 0.0)) > 0


def _weight(text: bytes | None) -> float:
    """Return the weight of a ``q=`` parameter: 1 if it is absent, 0 if it is malformed."""
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 0.0


def prefers_json(accept: bytes) -> bool:
    """Return whether an Accept value lists JSON and does not prefer plain text."""
    weights = {media: _weight(q) for media, q in _ranges(accept)}
    text = next((weights[media] for media in _PLAIN_TEXT if media in weights), 0.0)
    return weights.get(JSON, 0.0) > 0 and weights[JSON] >= text


def accepts_events(accept: bytes) -> bool:
    """Return whether an Accept value permits an event stream. An absent field permits everything.

    The most specific range counts.
    """
    allowed = {media: q is None or q.strip(b"0.") != b"" for media, q in _ranges(accept)}
    return not accept.strip() or next(
        (allowed[media] for media in _EVENT_STREAM if media in allowed), False
    )


def _ranges(accept: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield each range of an Accept value, and the text after its ``q=`` or None if it has none."""
    for part in list_members(accept):
        media, *parameters = [piece.strip() for piece in part.split(b";", ACCEPT_PARAMETERS_MAX)]
        yield media, next((piece[2:] for piece in parameters if piece.startswith(b"q=")), None)

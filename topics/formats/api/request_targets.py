"""Request targets: origin form and absolute form (RFC 9112 §3.2).

origin form      /path?query
absolute form    http://host:port/path?query
"""

from __future__ import annotations

import re

ABSOLUTE = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)


def authority_of(target: bytes) -> tuple[bytes, ...]:
    """The ``host:port`` of a target in absolute form; empty for any other form."""
    absolute = ABSOLUTE.fullmatch(target)
    return (absolute[1],) if absolute else ()


def origin_form(target: bytes) -> bytes:
    """``http://host/path?query`` as ``/path?query``, ``http://host?query`` as ``/?query``."""
    absolute = ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    rest: bytes = absolute[2]
    return rest if rest.startswith(b"/") else b"/" + rest

"""What tests of request bodies share: limits, and bodies with one record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.limits import LIMITS as WIDE
from topics.errors import TopicsError
from topics.formats.api.append_body import AppendBody, RecordIn, decode_append
from topics.formats.api.limits import Limits

LIMITS = Limits(
    batch_records=3,
    record_bytes=100,
    meta_bytes=50,
    tag_bytes=8,
    node_bytes=6,
    limit=1000,
    claim=1000,
)


def append(body: bytes, key: str | None = None, limits: Limits = LIMITS) -> AppendBody:
    return decode_append(body, key, limits)


def one(record: bytes, limits: Limits = LIMITS) -> RecordIn:
    """The only record of a body that holds it."""
    (found,) = append(b'{"records":[%b]}' % record, limits=limits).records
    return found


def data(value: bytes) -> bytes:
    return bytes(one(b'{"data":%b}' % value, WIDE).data)


def refused(
    code: type[TopicsError], function: Callable[..., Any], *arguments: Any, **more: Any
) -> TopicsError:
    with pytest.raises(code) as raised:
        function(*arguments, **more)
    assert raised.type is code
    return raised.value

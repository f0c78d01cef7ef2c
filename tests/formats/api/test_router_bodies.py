"""Router bodies (§6): defaults, changes by a request, the stored form, and rejected values."""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.api.test_append_body import LIMITS
from tests.support import routers
from tests.support.routers import OTHERS
from topics.errors import InvalidRequest
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.router_json import RouterConfig, decode_router, merge
from topics.formats.json_text import json_bytes

ENDS = {"source": "orders", "dest": "audit"}
# The object of §6, in its order.
DEFAULTS = ENDS | routers.DEFAULTS


def merged(base: RouterConfig | None = None, /, **fields: Any) -> RouterConfig:
    return merge(base, decode_router(json_bytes(ENDS | fields), LIMITS))


def test_a_new_router_has_the_defaults_in_the_order_of_the_document() -> None:
    assert list(merged().as_json().items()) == list(DEFAULTS.items())


@given(st.sets(st.sampled_from(sorted(OTHERS))), st.sets(st.sampled_from(sorted(OTHERS))))
def test_a_merge_replaces_only_the_named_fields(one: set[str], two: set[str]) -> None:
    first = {name: OTHERS[name] for name in one}
    second = {name: DEFAULTS[name] for name in two}
    assert merged(merged(**first), **second).as_json() == DEFAULTS | first | second


@pytest.mark.parametrize(
    ("sent", "match", "echoed"),
    [
        (None, None, None),
        ("t", TagMatch("Eq", "t"), ["tag", "Eq", "t"]),
        ("t*", TagMatch("Eq", "t*"), ["tag", "Eq", "t*"]),
        (["tag", "Eq", "t*"], TagMatch("Eq", "t*"), ["tag", "Eq", "t*"]),
        (["tag", "Glob", "t*"], TagMatch("Glob", "t"), ["tag", "Glob", "t*"]),
        (["tag", "Glob", "*"], TagMatch("Glob", ""), ["tag", "Glob", "*"]),
    ],
)
def test_a_filter_is_a_tuple_or_a_tag_and_is_returned_as_a_tuple(
    sent: Any, match: TagMatch | None, echoed: Any
) -> None:
    config = merged(filter=sent)
    assert (config.filter, config.as_json()["filter"]) == (match, echoed)
    assert merged(filter=echoed) == config


@pytest.mark.parametrize("fields", [{}, OTHERS])
def test_a_stored_router_config_is_read_unchanged(fields: dict[str, Any]) -> None:
    config = merged(**fields)
    stored = cbor2.loads(cbor2.dumps(msgspec.structs.asdict(config)))
    assert list(stored) == list(DEFAULTS)
    assert msgspec.convert(stored, RouterConfig) == config


def test_create_dest_affects_only_the_request() -> None:
    assert decode_router(json_bytes(ENDS), LIMITS).create_dest is True
    assert decode_router(json_bytes(ENDS | {"create_dest": False}), LIMITS).create_dest is False
    assert merged(create_dest=False) == merged()


def test_source_and_dest_must_differ() -> None:
    with pytest.raises(InvalidRequest) as raised:
        merged(source="a", dest="a")
    assert raised.value.detail == {"field": "dest"}
    assert merged(source="a", dest="A").dest == "A"


@given(st.binary() | st.text().map(json_bytes))
def test_any_bytes_without_a_valid_router_are_rejected(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_router(body, LIMITS)

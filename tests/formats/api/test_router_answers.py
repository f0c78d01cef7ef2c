"""JSON answers to router requests (§6): every field, in the document's order."""

from __future__ import annotations

from typing import Any

import msgspec

from topics.formats.api import routers
from topics.formats.api.answers import performance
from topics.formats.api.diff_body import TagMatch
from topics.formats.api.routers import RouterConfig

CONFIG = RouterConfig(source="orders", dest="audit")
PERFORMANCE = {"server_total_ms": 1.0}


def members(body: bytes) -> list[tuple[str, Any]]:
    """The answer with its ``performance`` member, in its order."""
    return list(msgspec.json.decode(body + performance(1.0)).items())


def test_a_put() -> None:
    assert routers.configured("orders->audit", CONFIG, created=True) == (
        b'{"router":"orders->audit","created":true,"source":"orders","dest":"audit",'
        b'"preserve_node":true,"preserve_tag":true,"filter":null,"allow_cycle":false,'
        b'"guarantee":"at_least_once"'
    )


def test_a_put_echoes_the_filter_as_the_tuple() -> None:
    config = RouterConfig(source="a", dest="b", filter=TagMatch("Glob", 'x"'))
    found = dict(members(routers.configured("r", config, created=False)))
    assert (found["created"], found["filter"]) == (False, ["tag", "Glob", 'x"*'])


def test_a_state() -> None:
    body = routers.state("orders->audit", CONFIG, forwarded_total=480231, lag_records=3, lag_ms=17)
    assert members(body) == [
        *(("router", "orders->audit"), ("source", "orders"), ("dest", "audit")),
        *(("preserve_node", True), ("preserve_tag", True), ("filter", None)),
        *(("allow_cycle", False), ("guarantee", "at_least_once"), ("forwarded_total", 480231)),
        *(("lag_records", 3), ("lag_ms", 17), ("performance", PERFORMANCE)),
    ]


def test_an_item_of_the_list() -> None:
    assert routers.item("orders->audit", CONFIG, forwarded_total=480231) == (
        b'{"router":"orders->audit","source":"orders","dest":"audit",'
        b'"guarantee":"at_least_once","forwarded_total":480231}'
    )


def test_a_delete() -> None:
    for existed in (True, False):
        assert members(routers.deleted("orders->audit", existed=existed)) == [
            ("router", "orders->audit"),
            ("deleted", existed),
            ("performance", PERFORMANCE),
        ]

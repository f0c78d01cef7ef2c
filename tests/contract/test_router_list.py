"""GET /v0/routers (§6): pages of routers by name, filtered by prefix, source and dest."""

from __future__ import annotations

import re

import pytest

from tests.contract.test_topic_state import BAD_CURSORS
from tests.support.api import Api, ok, refused
from tests.support.queues import until
from tests.support.routers import (
    delete,
    get,
    listing,
    named,
    names,
    names_for,
    pages,
    put,
)

URL_SAFE = re.compile(r"[A-Za-z0-9_-]+")


@pytest.fixture
def family(api: Api, topic: str) -> list[str]:
    """Six routers of one prefix, made in an order that is not the sorted one; every other source is
    on the other shard.
    """
    found = [f"{topic}.{end}" for end in ("b", "a->x", "a", "B", "a-x", "a0>")]
    sources = names_for(topic, [number % 2 for number in range(len(found))])
    for name, source in zip(found, sources, strict=True):
        ok(put(api, name, source, f"{source}.d"), 201)
    return sorted(found)


def test_a_list_is_sorted_and_limited_to_the_prefix(
    api: Api, topic: str, family: list[str]
) -> None:
    page = ok(listing(api, prefix=f"{topic}."))
    assert named(page["routers"]) == family
    assert "next_cursor" not in page
    assert names(api, prefix=f"{topic}.a") == [name for name in family if "a" in name[5:]]
    assert names(api, prefix=f"{topic}.a->") == [f"{topic}.a->x"]
    assert names(api, prefix=f"{topic}.b") == [f"{topic}.b"]


def test_a_list_shows_summaries(api: Api, topic: str) -> None:
    ok(put(api, f"{topic}->b", topic, f"{topic}.b"), 201)
    ok(put(api, f"{topic}->c", topic, f"{topic}.c", guarantee="exactly_once", filter="t"), 201)
    ok(api.append(topic, 1, 2, 3))
    until(lambda: ok(get(api, f"{topic}->b"))["forwarded_total"], lambda total: total == 3)
    assert ok(listing(api, source=topic))["routers"] == [
        {
            "router": f"{topic}->b",
            "source": topic,
            "dest": f"{topic}.b",
            "guarantee": "at_least_once",
            "forwarded_total": 3,
        },
        {
            "router": f"{topic}->c",
            "source": topic,
            "dest": f"{topic}.c",
            "guarantee": "exactly_once",
            "forwarded_total": 0,
        },
    ]


def test_a_list_is_filtered_by_its_ends(api: Api, topic: str) -> None:
    ends = {"1": ("a", "b"), "2": ("a", "c"), "3": ("b", "d"), "4": ("a", "b"), "5": ("A", "e")}
    for name, (source, dest) in ends.items():
        ok(put(api, f"{topic}.{name}", f"{topic}.{source}", f"{topic}.{dest}"), 201)

    def found(**query: str) -> str:
        sent = {name: f"{topic}.{value}" for name, value in query.items()}
        return "".join(name.rpartition(".")[2] for name in names(api, **sent, page_size=2))

    assert found(source="a") == "124"
    assert found(dest="b") == "14"
    assert found(source="b") == "3"
    assert found(source="A") == "5"
    assert found(source="a", dest="b") == "14"
    assert found(source="a", dest="d") == ""
    assert found(source="a", prefix="2") == "2"
    assert found(source="a", dest="b", prefix="4") == "4"
    assert found(dest="a") == ""
    assert found(source="nope") == ""
    assert names(api, source=topic) == [], "an end is named whole"


def test_what_names_no_topic_matches_no_router(api: Api, family: list[str]) -> None:
    for value in ("", "-", "a/b", "é", "a\n", "x" * 300):
        for query in ({"source": value}, {"dest": value}, {"source": value, "dest": value}):
            page = ok(listing(api, **query))
            assert page["routers"] == []
            assert "next_cursor" not in page


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 6), (2, 3), (3, 2), (4, 2), (5, 2), (6, 1), (7, 1), (1000, 1)],
    ids=lambda value: f"6 {value}",
)
def test_pages_end_without_a_cursor(
    api: Api, topic: str, family: list[str], size: int, count: int
) -> None:
    found = pages(api, prefix=f"{topic}.", page_size=size)
    assert [name for page in found for name in named(page)] == family
    assert len(found) == count
    assert all(len(page) == size for page in found[:-1])


def test_a_cursor_goes_into_a_url_as_it_is(api: Api, topic: str, family: list[str]) -> None:
    cursor = ok(listing(api, prefix=f"{topic}.", page_size=2))["next_cursor"]
    assert URL_SAFE.fullmatch(cursor), cursor
    page = ok(api.call("GET", f"/v0/routers?prefix={topic}.&page_size=2&cursor={cursor}"))
    assert named(page["routers"]) == family[2:4]


def test_a_cursor_stands_though_routers_come_and_go(
    api: Api, topic: str, family: list[str]
) -> None:
    cursor = ok(listing(api, prefix=f"{topic}.", page_size=3))["next_cursor"]
    for name in (f"{topic}.0", f"{topic}.z"):
        ok(put(api, name, name, f"{name}.d"), 201)
    ok(delete(api, family[2]))
    ok(delete(api, family[4]))
    assert names(api, prefix=f"{topic}.", page_size=2, cursor=cursor) == [
        family[3],
        family[5],
        f"{topic}.z",
    ]


def test_a_list_has_no_topics_and_the_list_of_topics_no_routers(api: Api, topic: str) -> None:
    ok(put(api, f"{topic}->b", f"{topic}.a", f"{topic}.b"), 201)
    assert names(api, prefix=topic) == [f"{topic}->b"]
    page = ok(api.listing(prefix=topic))
    assert [item["topic"] for item in page["topics"]] == [f"{topic}.a", f"{topic}.b"]


@pytest.mark.slow
def test_a_default_page_holds_100_and_a_page_at_most_1000(api: Api, topic: str) -> None:
    made = [f"{topic}.{number:04d}" for number in range(1010)]
    for number, name in enumerate(made):
        ok(put(api, name, topic, f"{topic}.d{number % 3}"), 201)
    prefix = f"{topic}."
    assert named(ok(listing(api, prefix=prefix))["routers"]) == made[:100]
    assert named(ok(listing(api, prefix=prefix, page_size=1000))["routers"]) == made[:1000]
    assert len(ok(listing(api, prefix=prefix, page_size=5000))["routers"]) == 1000
    assert names(api, prefix=prefix) == made
    assert names(api, dest=f"{topic}.d1") == made[1::3]


# --- refusals


@pytest.mark.parametrize("cursor", BAD_CURSORS, ids=lambda cursor: f"6 {cursor[:24]}")
def test_a_corrupt_cursor_is_a_400(api: Api, cursor: str) -> None:
    refused(listing(api, cursor=cursor), 400, "invalid_request")


@pytest.mark.parametrize(
    "size", ["-1", "abc", "1.5", "true", "1e2", "", "9" * 40 + "x"], ids=lambda size: f"6 {size}"
)
def test_a_page_size_is_a_whole_number(api: Api, size: str) -> None:
    refused(listing(api, page_size=size), 400, "invalid_request")


@pytest.mark.parametrize("prefix", ["no-such-prefix", "é", "-", ">", "x" * 300, "a/b", "\n"])
def test_a_prefix_without_routers_lists_nothing(api: Api, family: list[str], prefix: str) -> None:
    page = ok(listing(api, prefix=prefix))
    assert page["routers"] == []
    assert "next_cursor" not in page

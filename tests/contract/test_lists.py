"""GET /v0/topics (§1.3) and GET /v0/routers (§6): the same prefixes, pages and cursors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.support.api import Api, ok, refused, spread
from tests.support.routers import put

URL_SAFE = re.compile(r"[A-Za-z0-9_.~=-]+")
ENDS = ("b", "a->x", "a", "B", "a-x", "a0", "c:1")  # not sorted; names of topics contain no arrow


class Family:
    """Topics or routers with a common prefix. The routers are stored on both shards."""

    def __init__(self, api: Api, kind: str, topic: str) -> None:
        self.api, self.kind, self.prefix = api, kind, f"{topic}."
        ends = [end for end in ENDS if kind == "routers" or ">" not in end]
        for end in ends:
            self.make(f"{self.prefix}{end}")
        self.names = sorted(f"{self.prefix}{end}" for end in ends)

    def make(self, name: str, api: Api | None = None, ends: str = "") -> None:
        api, ends = api or self.api, ends or name.replace(">", ".")
        made = api.put(name) if self.kind == "topics" else put(api, name, f"s.{ends}", f"d.{ends}")
        ok(made, 201)

    def delete(self, name: str) -> None:
        ok(self.api.call("DELETE", f"/v0/{self.kind}/{name}"))

    def page(self, query: str, prefix: str | None = None) -> Any:
        prefix = self.prefix if prefix is None else prefix
        return ok(self.api.call("GET", f"/v0/{self.kind}?prefix={prefix}&{query}"))

    def named(self, page: Any) -> list[str]:
        return [item[self.kind[:-1]] for item in page[self.kind]]

    def pages(self, size: int, cursor: str = "") -> list[list[str]]:
        """Return the names of each page up to the last one."""
        found, more = list[list[str]](), f"&cursor={cursor}" if cursor else ""
        while True:
            page = self.page(f"page_size={size}{more}")
            found.append(self.named(page))
            if "next_cursor" not in page:
                return found
            assert URL_SAFE.fullmatch(page["next_cursor"]), "invalid in a URL"
            more = f"&cursor={page['next_cursor']}"


@pytest.fixture(params=["topics", "routers"])
def family(request: pytest.FixtureRequest, api: Api, topic: str) -> Family:
    return Family(api, request.param, topic)


def test_a_list_is_sorted_and_limited_to_the_prefix(family: Family) -> None:
    page = family.page("")
    assert family.named(page) == family.names
    assert "next_cursor" not in page
    for end in ("a", "a-", "b", "B", "c:"):
        prefix = f"{family.prefix}{end}"
        expected = [name for name in family.names if name.startswith(prefix)]
        assert family.named(family.page("", prefix)) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 8, 1000])
def test_the_last_page_has_no_cursor(family: Family, size: int) -> None:
    names = family.names
    assert family.pages(size) == [names[at : at + size] for at in range(0, len(names), size)]


def test_a_cursor_stays_valid_while_names_are_created_and_deleted(family: Family) -> None:
    cursor = family.page("page_size=3")["next_cursor"]
    family.make(f"{family.prefix}0")
    family.make(f"{family.prefix}z")
    names = family.names
    family.delete(names[2])
    family.delete(names[4])
    found = [name for page in family.pages(2, cursor) for name in page]
    assert found == [names[3], *names[5:], f"{family.prefix}z"]


@pytest.mark.slow
def test_a_default_page_holds_100_and_a_page_at_most_1000(family: Family) -> None:
    family.prefix += "many."
    made = [f"{family.prefix}{number:04d}" for number in range(1010)]
    ends = [f"{family.prefix}{number}" for number in range(16)]
    spread(family.api, lambda own, at: family.make(made[at], own, ends[at % 16]), len(made))
    assert family.named(family.page("")) == made[:100]
    for size in (1000, 5000):
        assert family.named(family.page(f"page_size={size}")) == made[:1000]
    assert [name for page in family.pages(300) for name in page] == made


@pytest.mark.parametrize("prefix", ["no-such-prefix", "%C3%A9", "-", "x" * 255, "a%2Fb", "%0A"])
def test_a_prefix_without_names_lists_nothing(family: Family, prefix: str) -> None:
    page = family.page("", prefix)
    assert page[family.kind] == []
    assert "next_cursor" not in page


@pytest.mark.parametrize(
    ("kind", "parameter", "most"),
    [
        ("topics", "prefix", 255),
        ("topics", "cursor", 512),
        *(("routers", name, 255) for name in ("prefix", "source", "dest")),
        ("routers", "cursor", 512),
    ],
)
def test_a_parameter_longer_than_any_name_is_refused(
    api: Api, kind: str, parameter: str, most: int
) -> None:
    answer = refused(
        api.call("GET", f"/v0/{kind}?{parameter}={'x' * (most + 1)}"), 400, "invalid_request"
    )
    assert answer["detail"] == {"parameter": parameter}
    assert f"{most} characters" in answer["message"]


def test_a_cursor_after_the_longest_name_is_accepted(api: Api, topic: str) -> None:
    names = [f"{topic.ljust(254, 'x')}{end}" for end in "ab"]
    for name in names:
        ok(api.put(name), 201)
    page = ok(api.listing(prefix=names[0][:-1], page_size=1))
    query = f"prefix={names[0][:-1]}&cursor={page['next_cursor']}"
    after = ok(api.call("GET", f"/v0/topics?{query}"))
    assert [item["topic"] for item in (*page["topics"], *after["topics"])] == names

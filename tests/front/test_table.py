"""The route table: rows, operations and the matcher."""

from __future__ import annotations

import pytest

from topics.front.table import ROUTES, match


def test_each_method_and_path_belongs_to_one_row() -> None:
    rows = [(method, route.path) for route in ROUTES for method in route.methods]
    assert len(rows) == len(set(rows))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.methods[0]} {route.path}")
def test_every_row_is_found_by_its_path_and_has_an_operation(route: object) -> None:
    assert isinstance(route, type(ROUTES[0]))
    assert route in ROUTES
    for method in route.methods:
        found = match(method, route.path_of("a").replace(":wid", "w").encode() + b"?q=1")
        assert found.route is route
        assert found.topic == ("a" if ":topic" in route.path else None)
        assert found.wid == ("w" if ":wid" in route.path else None)
        assert found.router == ("a" if ":router" in route.path else None)
        assert found.query == b"q=1"


@pytest.mark.parametrize("name", ["a->b", "a-%3Eb", "a%2D%3eb", "%61->b"])
def test_the_name_of_a_router_is_decoded(name: str) -> None:
    found = match("PUT", f"/v0/routers/{name}".encode())
    assert (found.route.name, found.router, found.topic) == ("router.put", "a->b", None)


@pytest.mark.parametrize("name", [":router", ":topic", "a:router:topic"])
def test_a_name_may_look_like_a_placeholder(name: str) -> None:
    for path in ("/v0/topics/", "/v0/routers/"):
        found = match("PUT", f"{path}{name}".encode())
        assert found.topic or found.router == name
        assert found.route.path_of(name) == f"{path}{name}"


def test_an_encoded_slash_separates_segments() -> None:
    assert match("POST", b"/v0/topics/a%2Fdiff").route.name == "diff"

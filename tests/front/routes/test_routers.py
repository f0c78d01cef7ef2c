"""The routes of routers: what reaches the owner, pages of the list, and every refusal."""

from __future__ import annotations

import base64

import pytest

from tests.support.fake_backend import FakeBackend
from tests.support.front import LANES, bearer, running
from topics.errors import RouterCycle, TopicExistsIncompatible, TopicsError
from topics.formats.wire import calls

BODY = b'{"source":"t.a","dest":"t.b"}'
KEYS = "boss,reader:read,writer:write,admin:admin:t.,remover:delete:t."


@LANES
async def test_a_router_is_made_changed_shown_and_deleted(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        path = "/v0/routers/a->b"
        made = await client.ask("PUT", path, BODY)
        assert (made.status, made.json()) == (201, {"router": "a->b", "created": True})
        again = await client.ask("PUT", path, BODY)
        assert (again.status, again.json()["created"]) == (200, False)
        assert (await client.ask("GET", path)).json() == {"router": "a->b"}
        assert (await client.ask("DELETE", path)).json()["deleted"] is True
        gone = await client.ask("DELETE", path)
        assert (gone.status, gone.json()["deleted"]) == (200, False)
        absent = await client.ask("GET", path)
        assert (absent.status, absent.code) == (404, "router_not_found")
        assert absent.json()["error"]["detail"] == {"router": "a->b"}


@LANES
@pytest.mark.parametrize("name", ["a-%3Eb", "a->b", "%61%2d%3eb"])
async def test_the_name_reaches_the_owner_decoded_and_the_body_as_it_was_sent(
    fast: bool, name: str
) -> None:
    async with running(fast=fast, backend=FakeBackend(shards=5)) as run:
        client = await run.connect()
        for method in ("PUT", "GET", "DELETE"):
            body = BODY if method == "PUT" else b""
            answer = await client.ask(method, f"/v0/routers/{name}?x=y", body)
            assert answer.status in (200, 201)
        puts, gets, deletes = run.backend.calls
        at = puts[1].at
        assert puts == ("router.put", calls.RouterPutParams("a->b", None, at), BODY)
        assert gets[:2] == ("router.get", calls.RouterGetParams("a->b", None, gets[1].at))
        assert deletes[0] == "router.delete"
        assert deletes[1] == calls.RouterDeleteParams("a->b", None, deletes[1].at)
        assert at > 0


async def test_a_long_body_reaches_the_owner_whole() -> None:
    body = BODY[:-1] + b',"later":"' + b"x" * 20_000 + b'"}'
    async with running() as run:
        client = await run.connect()
        assert (await client.ask("PUT", "/v0/routers/a", body)).status == 201
        assert run.backend.calls[0][2] == body


@LANES
async def test_names_have_up_to_255_characters_and_a_case(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        for name in ("a" + ">" * 254, "A", "a", "9._:->"):
            assert (await client.ask("PUT", f"/v0/routers/{name}", BODY)).status == 201
        assert len(run.backend.routers) == 4


# Who may


@LANES
@pytest.mark.parametrize(
    ("method", "name", "key", "status"),
    [
        ("PUT", "t.r", "nobody", 401),
        ("PUT", "t.r", "reader", 403),
        ("PUT", "t.r", "writer", 403),
        ("PUT", "t.r", "remover", 403),
        ("PUT", "r", "admin", 403),
        ("PUT", "T.r", "admin", 403),
        ("PUT", "t.r", "admin", 201),
        ("PUT", "r", "boss", 201),
        ("GET", "t.r", "nobody", 401),
        ("GET", "t.r", "reader", 404),
        ("GET", "t.r", "admin", 403),
        ("GET", "t.r", "writer", 403),
        ("DELETE", "t.r", "reader", 403),
        ("DELETE", "t.r", "admin", 403),
        ("DELETE", "r", "remover", 403),
        ("DELETE", "t.r", "remover", 200),
    ],
)
async def test_keys_need_their_scope_and_a_prefix_of_the_name(
    fast: bool, method: str, name: str, key: str, status: int
) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        body = BODY if method == "PUT" else b""
        answer = await client.ask(method, f"/v0/routers/{name}", body, authorization=bearer(key))
        assert answer.status == status
        assert len(run.backend.calls) == (status not in (401, 403))


@LANES
async def test_the_owner_is_told_the_prefixes_of_the_key(fast: bool) -> None:
    keys = "some::t.|u.,all"
    async with running(fast=fast, keys=keys) as run:
        client = await run.connect()
        for key, prefixes in (("some", ["t.", "u."]), ("all", None)):
            for method, path, body in (
                ("PUT", "/v0/routers/t.r", BODY),
                ("GET", "/v0/routers/t.r", b""),
                ("DELETE", "/v0/routers/t.r", b""),
                ("GET", "/v0/routers", b""),
            ):
                answer = await client.ask(method, path, body, authorization=bearer(key))
                assert answer.status in (200, 201)
                assert run.backend.calls[-1][1].prefixes == prefixes


@LANES
async def test_forbidden_comes_before_a_wrong_body_and_unauthorized_before_all(fast: bool) -> None:
    async with running(fast=fast, keys=KEYS) as run:
        client = await run.connect()
        for key, method, status in (
            ("nobody", "PATCH", 401),
            ("admin", "PATCH", 405),
            ("admin", "PUT", 403),
            ("boss", "PUT", 415),
        ):
            fields = {"content_type": "text/plain", "authorization": bearer(key)}
            answer = await client.ask(method, "/v0/routers/%20", b"{", **fields)
            assert answer.status == status


# Refusals


class Refusing(FakeBackend):
    """The owner refuses everything with ``failure``."""

    failure: TopicsError

    def _answer(self, *args: object) -> tuple[tuple[object, ...], bytes]:
        raise self.failure


@LANES
@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (RouterCycle(["A", "B", "A"]), 409),
        (TopicExistsIncompatible("dest is taken", reason="router_dest_fan_in"), 409),
    ],
    ids=["cycle", "fan-in"],
)
async def test_what_the_owner_refuses_is_told_with_its_detail(
    fast: bool, failure: TopicsError, status: int
) -> None:
    backend = Refusing()
    backend.failure = failure
    async with running(fast=fast, backend=backend) as run:
        client = await run.connect()
        answer = await client.ask("PUT", "/v0/routers/r", BODY)
        assert (answer.status, answer.code) == (status, failure.code)
        assert answer.json()["error"]["detail"] == failure.detail


@pytest.mark.parametrize("path", ["/v0/routers", "/v0/routers/r"])
async def test_an_owner_that_is_away_is_a_503(path: str) -> None:
    async with running(backend=FakeBackend(ready=False)) as run:
        client = await run.connect()
        answer = await client.ask("GET", path)
        assert (answer.status, answer.code) == (503, "not_ready")
        assert answer.headers["retry-after"]


# The list


@LANES
async def test_the_list_comes_in_pages(fast: bool) -> None:
    names = sorted(f"t.{n:03}->x" for n in range(25))
    async with running(fast=fast, backend=FakeBackend(routers=dict.fromkeys(names))) as run:
        client = await run.connect()
        seen, sizes, more = list[str](), list[int](), ""
        while True:
            page = (await client.ask("GET", f"/v0/routers?page_size=10{more}")).json()
            assert page.keys() - {"next_cursor"} == {"routers", "performance"}
            seen += [router["router"] for router in page["routers"]]
            sizes.append(len(page["routers"]))
            if "next_cursor" not in page:
                break
            more = f"&cursor={page['next_cursor']}"
        assert (seen, sizes) == (names, [10, 10, 5])
        assert "next_cursor" not in (await client.ask("GET", "/v0/routers?page_size=25")).json()
        assert (await client.ask("GET", "/v0/routers?page_size=24")).json()["next_cursor"]


@LANES
async def test_the_owner_is_asked_for_one_more_than_the_page(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        cursor = base64.urlsafe_b64encode(b'{"after":"a->b"}').decode()
        for query, params in (
            ("", calls.RouterListParams("", None, None, None, 101, None)),
            ("?page_size=5000", calls.RouterListParams("", None, None, None, 1001, None)),
            ("?page_size=0", calls.RouterListParams("", None, None, None, 2, None)),
            ("?source=&dest=", calls.RouterListParams("", "", "", None, 101, None)),
            (
                f"?prefix=a-%3E&source=a&dest=b&page_size=7&cursor={cursor}&later=1",
                calls.RouterListParams("a->", "a", "b", "a->b", 8, None),
            ),
        ):
            answer = await client.ask("GET", f"/v0/routers{query}")
            assert answer.status == 200
            assert answer.json()["routers"] == []
            assert run.backend.calls[-1] == ("router.list", params, b"")


@LANES
@pytest.mark.parametrize(
    "query", ["page_size=x", "page_size=-1", "cursor=!", "cursor=e30", "cursor=", "source=%ff"]
)
async def test_a_wrong_query_of_the_list_is_refused(fast: bool, query: str) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        answer = await client.ask("GET", f"/v0/routers?{query}")
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert run.backend.calls == []

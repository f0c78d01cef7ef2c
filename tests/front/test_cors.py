"""CORS (§0.2)."""

from __future__ import annotations

import pytest

from tests.support.front import RECORD, Running, running
from tests.support.raw_client import RawResponse, request
from topics.config import Settings
from topics.formats.api.request_heads import HeadFields
from topics.front.cors import Cors

APP, OTHER = "https://app.example", "https://other.example"
LISTED = Settings(cors_origins=(APP, "http://localhost:3000"), allowed_hosts=("*",))
ANY = Settings(cors_origins=("*",), allowed_hosts=("*",))
EXPOSED = "Retry-After, X-Request-Id"


def cors_of(answer: RawResponse) -> dict[str, str]:
    """Return the CORS fields of a response."""
    names = [name for name in answer.headers if name.startswith("access-control-")]
    return {name.removeprefix("access-control-"): answer.headers[name] for name in names}


def expected_fields(origin: str) -> dict[str, str]:
    return {"allow-origin": origin, "expose-headers": EXPOSED}


async def answers(run: Running, **headers: str) -> list[RawResponse]:
    """Return responses of both planes: successes, and refusals of the guard and of operations."""
    client = await run.connect()
    auth = {"authorization": "Bearer k", **headers}
    return [
        await client.request("POST", "/v0/topics/a", RECORD, **auth),
        await client.request("POST", "/v0/topics/a", RECORD, **auth),  # with a cached head
        await client.request("POST", "/v0/topics/none/diff", b"{}", **auth),
        await client.request("GET", "/v0/topics", b"", **auth),
        await client.request("GET", "/v0/topics/none", b"", **auth),
        await client.request("GET", "/v0/health", b"", **headers),
        await client.request("GET", "/v0/ws", b"", **auth),
        await client.request("GET", "/v0/nothing", b"", **auth),
        await client.request("GET", "/v0/topics", b"", **headers),
        await client.request("OPTIONS", "/v0/topics", b"", **auth),
    ]


STATUSES = [201, 200, 404, 200, 404, 200, 426, 404, 401, 405]


async def test_a_page_of_a_listed_origin_can_read_every_response() -> None:
    async with running(keys="k", settings=LISTED) as run:
        found = await answers(run, origin=APP)
        assert [answer.status for answer in found] == STATUSES
        for answer in found:
            assert cors_of(answer) == expected_fields(APP)
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", [OTHER, "null", f"{APP}:444", f"{APP}.other", "", APP + "/"])
async def test_a_page_of_another_origin_can_read_no_response(origin: str) -> None:
    async with running(keys="k", settings=LISTED) as run:
        found = await answers(run, origin=origin)
        writes = [403] * 3 if origin else STATUSES[:3]  # programs send no Origin
        assert [answer.status for answer in found[:6]] == [*writes, *STATUSES[3:6]]
        for answer in found:
            assert cors_of(answer) == {}
            assert answer.headers["vary"] == "Origin", (
                "a cache may return the response to another origin"
            )


async def test_a_star_lets_pages_of_any_origin_read() -> None:
    async with running(keys="k", settings=ANY) as run:
        for headers in ({"origin": OTHER}, {"origin": "null"}, {}):
            for answer in await answers(run, **headers):
                assert cors_of(answer) == expected_fields("*"), (
                    "a cache may return the response to a page"
                )
                assert "vary" not in answer.headers


async def preflight(run: Running, path: str, **headers: str) -> RawResponse:
    client = await run.connect()
    fields = {"origin": APP, "access_control_request_method": "PUT", **headers}
    await client.send(request("OPTIONS", path, b"", **fields))
    answer = await client.receive()
    assert (await client.request("GET", "/v0/health", host=headers.get("host", ""))).status < 500
    return answer


@pytest.mark.parametrize(
    "path", ["/v0/topics/a", "/v0/topics/a/diff", "/v0/routers/r", "/v0/ws", "/v0/watch/w", "/"]
)
async def test_a_preflight_needs_no_key(path: str) -> None:
    async with running(keys="k", settings=LISTED) as run:
        answer = await preflight(run, path)
        assert answer.status == 204
        assert cors_of(answer) == {
            **expected_fields(APP),
            "allow-methods": "GET, POST, PUT, DELETE",
            "allow-headers": (
                "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, X-Request-Id"
            ),
            "max-age": "7200",
        }
        assert answer.headers["vary"] == "Origin"
        assert "x-request-id" in answer.headers
        assert not {"content-length", "content-type"} & answer.headers.keys()


async def test_a_preflight_of_another_origin_allows_nothing() -> None:
    async with running(settings=LISTED) as run:
        answer = await preflight(run, "/v0/topics/a", origin=OTHER)
        assert (answer.status, cors_of(answer)) == (204, {})


async def test_a_preflight_of_any_origin_is_accepted_with_a_star() -> None:
    async with running(settings=ANY) as run:
        answer = await preflight(run, "/v0/topics/a", origin="null")
        assert (answer.status, cors_of(answer)["allow-origin"]) == (204, "*")
        assert "vary" not in answer.headers


async def test_a_preflight_gets_404_for_an_unknown_path_and_403_for_a_foreign_host() -> None:
    settings = Settings(cors_origins=(APP,), allowed_hosts=("topics.example",))
    async with running(settings=settings) as run:
        assert (await preflight(run, "/v0/nothing")).status == 404
        refused = await preflight(run, "/v0/topics/a", host="rebound.example")
        assert (refused.status, cors_of(refused)) == (403, expected_fields(APP))


def test_a_request_with_two_origins_is_not_allowed() -> None:
    fields = HeadFields([(b"origin", APP.encode()), (b"origin", APP.encode())])
    assert not Cors((APP,)).allows(fields)
    assert Cors(("*",)).allows(fields)
    assert not Cors(()).allows(fields)


def test_a_response_to_an_unreadable_head_has_fields_for_no_origin() -> None:
    assert Cors(()).lines_of_unread == b""
    assert Cors((APP,)).lines_of_unread == b"vary: Origin\r\n"
    assert b"access-control-allow-origin: *\r\n" in Cors(("*",)).lines_of_unread

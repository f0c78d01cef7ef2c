"""The specifications that the server returns."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.support.api import Api, Wire, ok, refused, request
from tests.support.server import Server
from topics import __version__
from topics.front.data.specs import ASYNCAPI, FOLDER, OPENAPI

PATHS = pytest.mark.parametrize("path", [OPENAPI, ASYNCAPI])


@PATHS
def test_a_document_is_returned_unchanged(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == (FOLDER / path.rpartition("/")[2]).read_bytes()
    assert answer.json()["info"]["version"] == __version__


@PATHS
def test_a_client_with_the_current_document_gets_304(api: Api, wire: Wire, path: str) -> None:
    etag = api.call("GET", path).headers["etag"]
    for known in (etag, f'"other", {etag}', "*", f"W/{etag}"):
        again = api.call("GET", path, None, {"If-None-Match": known})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", etag)
        assert "content-length" not in again.headers, "wrong length"
    other = api.call("GET", path, None, {"If-None-Match": '"other"'})
    assert (other.status, other.headers["etag"]) == (200, etag)
    wire.send(request("HEAD", path))
    head = wire.answer("HEAD")
    assert (head.status, head.headers["etag"]) == (200, etag)
    assert int(head.headers["content-length"]) == len(other.body)
    wire.send(request("GET", path, None, f"If-None-Match: {etag}"), request("GET", "/v0/health"))
    assert wire.answer().status == 304
    assert wire.answer().json()["status"] == "ok", "bytes of the 304 remained"


@PATHS
def test_the_compressed_document_has_its_own_etag(api: Api, path: str) -> None:
    plain = api.call("GET", path)
    packed = api.call("GET", path, None, {"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.body) == plain.body
    assert packed.headers["etag"] != plain.headers["etag"]
    assert {plain.headers["vary"], packed.headers["vary"]} == {"accept-encoding"}
    request_headers = {"Accept-Encoding": "gzip", "If-None-Match": packed.headers["etag"]}
    assert api.call("GET", path, None, request_headers).status == 304
    request_headers["If-None-Match"] = plain.headers["etag"]
    assert api.call("GET", path, None, request_headers).status == 200


@pytest.mark.parametrize("path", ["/", "/v0"])
def test_the_root_links_to_the_documents(api: Api, path: str) -> None:
    answer = api.call("GET", path)
    assert answer.headers["link"] == f'<{OPENAPI}>; rel="service-desc"'
    links = ok(answer)["links"]
    assert (links["openapi"], links["asyncapi"]) == (OPENAPI, ASYNCAPI)


@pytest.mark.slow
def test_the_documents_require_no_key(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", shards=1, api_keys="k") as server,
        Api(server.address) as anonymous,
    ):
        assert [anonymous.call("GET", path).status for path in (OPENAPI, ASYNCAPI)] == [200, 200]
        refused(anonymous.call("GET", "/v0/topics"), 401, "unauthorized")

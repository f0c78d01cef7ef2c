"""The files of the console: access, header fields, and that no other file is served."""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from tests.support.front import bearer, running
from topics.actors.link.board import ShardState
from topics.config import Settings
from topics.front.data import console
from topics.front.table import ROUTES

FILES = console.TOPICS / "front/console"
OPEN = sorted(route.path for route in console.ROUTES)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_each_file_has_its_type_and_fields_for_get_and_head_and_a_304(coding: str) -> None:
    async with running() as run:
        client = await run.connect()
        for path in OPEN:
            got = await client.request("GET", path, accept_encoding=coding)
            head = await client.request("HEAD", path, accept_encoding=coding)
            assert (got.status, head.status) == (200, 200)
            fields = {name: value for name, value in got.headers.items() if name in head.headers}
            for answer in (fields, head.headers):
                answer.pop("x-request-id")
                answer.pop("date")
            assert fields == head.headers
            assert int(fields["content-length"]) == len(got.body)
            assert re.fullmatch(r'"[0-9a-f]{32}(-gzip)?"', fields["etag"])
            assert ("-gzip" in fields["etag"]) == ("content-encoding" in fields)
            assert ("content-encoding" in fields) <= (coding == "gzip")
            assert fields["vary"] == "accept-encoding"
            assert fields["cache-control"] == "no-cache"
            assert fields["x-content-type-options"] == "nosniff"
            assert fields["referrer-policy"] == "no-referrer"
            known = await client.request(
                "GET",
                path,
                accept_encoding=coding,
                if_none_match=f'"other", W/{fields["etag"]}',
            )
            assert (known.status, known.body) == (304, b"")
            assert known.headers["etag"] == fields["etag"]
            assert "content-length" not in known.headers
            other = await client.request(
                "GET", path, accept_encoding="identity", if_none_match='"o"'
            )
            assert other.body == (
                gzip.decompress(got.body) if "content-encoding" in fields else got.body
            )


async def test_the_page_may_run_only_its_own_scripts_and_not_be_framed() -> None:
    async with running() as run:
        answer = await (await run.connect()).request("GET", "/console")
        policy = dict(
            each.strip().split(" ", 1)
            for each in answer.headers["content-security-policy"].split(";")
        )
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "lit-html",
    }
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert b"style=" not in answer.body
    for script in re.findall(rb"<script[^>]*>.*?</script>", answer.body, re.DOTALL):
        assert re.fullmatch(rb'<script type="module" src="[^"]+"></script>', script)


@pytest.mark.parametrize(
    "path",
    [
        *("/console/", "/console/missing.js", "/console/index.html", "/console/lit-html.LICENSE"),
        *(
            "/console/../config.py",
            "/console/%2e%2e/%2e%2e/config.py",
            "/console/..%2fconsole%2fapp.js",
        ),
        *(
            "/console//etc/passwd",
            "/console/%2fetc%2fpasswd",
            "/console/app.js/",
            "/console/app.js%00",
        ),
        *("/console/APP.JS", "/console/./app.js", "/console/app.js%20", "/console/a/app.js"),
    ],
)
async def test_no_other_path_returns_a_file(path: str) -> None:
    async with running() as run:
        answer = await (await run.connect()).request("GET", path)
        assert (answer.status, answer.code) == (404, "not_found")


async def test_the_files_need_no_key_and_everything_else_does() -> None:
    async with running(keys="boss", probe_auth=True) as run:
        client = await run.connect()
        assert (await client.request("GET", "/console")).status == 200
        assert (
            await client.request("GET", "/console", authorization=bearer("wrong"))
        ).status == 200
        for path in ("/v0/health", "/v0/metrics", "/v0/topics", "/", "/console/missing.js"):
            assert (await client.request("GET", path)).status == 401


async def test_a_console_that_is_off_has_no_paths_and_no_link() -> None:
    async with running(settings=Settings(console=False)) as run:
        client = await run.connect()
        for path in OPEN:
            assert (await client.request("GET", path)).code == "not_found"
        assert "console" not in (await client.request("GET", "/")).json()["links"]
    async with running() as run:
        assert (await (await run.connect()).request("GET", "/")).json()["links"][
            "console"
        ] == "/console"


def test_every_file_of_the_folder_is_served_and_used() -> None:
    served = {path.removeprefix("/console/") for path in OPEN} - {"/console"}
    shipped = {path.name for path in FILES.iterdir() if path.suffix in console.MEDIA_TYPES}
    assert served == shipped - {"index.html"} | {"topics.js"}
    texts = [path.read_text() for path in FILES.iterdir() if path.suffix in (".js", ".html")]
    referenced = {
        name for text in texts for name in re.findall(r'"(?:\./|/console/)([\w.-]+)"', text)
    }
    assert referenced == served
    assert all(route.is_public == (route in console.ROUTES) for route in ROUTES)


def test_the_vendored_library_is_the_published_one() -> None:
    digest, name = (FILES / "lit-html.sha256").read_text().split()
    library = FILES / name
    assert hashlib.sha256(library.read_bytes()).hexdigest() == digest
    assert (
        digest == "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2"
    )  # 3.3.3, npm
    assert "BSD 3-Clause" in (FILES / "lit-html.LICENSE").read_text()
    assert not re.search(r"\beval\b|\bFunction\(", library.read_text())


def test_no_script_creates_html_from_text() -> None:
    for path in [*FILES.glob("*.js"), Path(console.TOPICS / "client/js/topics.js")]:
        if path.name != "lit-html.js":
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|unsafeHTML|document\.write|\beval\(|style=",
                path.read_text(),
            ), path.name


def test_the_overview_names_every_state_of_a_shard() -> None:
    (names,) = re.findall(
        r"const STATES = \[(.*?)\]", (FILES / "overview.js").read_text(), re.DOTALL
    )
    named = re.findall(r'"([a-z ]+)"', names)
    assert [name.replace(" ", "_") for name in named] == [
        state.name.lower().replace("no_room", "no_space") for state in ShardState
    ]

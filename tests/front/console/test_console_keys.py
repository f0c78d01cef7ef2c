"""The console with a server that has keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.front.console.conftest import Console
from tests.support import chromium
from tests.support.api import Api, create
from tests.support.server import Server

pytestmark = pytest.mark.slow

ADMIN_KEY, READER, WRITER = "boss-key", "reader-key", "writer-key"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = f"{ADMIN_KEY},{READER}:read,{WRITER}:read+write:mine"
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    with Server(data_dir, shards=1, api_keys=keys) as server:
        with Api(server.address, token=ADMIN_KEY) as api:
            create(api, "mine", "a record")
            create(api, "jobs", type="queue", dead_letter="mine.dead")
            create(api, "mine.dead", 1)
        yield server


@pytest.fixture
def console(browser: chromium.Chromium, guarded: Server) -> Iterator[Console]:
    console = Console(browser, guarded)
    console.open("#/")
    console.shows("API key")
    yield console
    browser.open("about:blank")


def sign_in(console: Console, key: str) -> None:
    console.fill("Key", key)
    console.click("Sign in")


def test_the_key_is_requested_once_and_sent_with_streams_too(console: Console) -> None:
    sign_in(console, "käse")
    console.shows("visible ASCII")
    sign_in(console, "wrong")
    console.shows("the server does not accept this key")
    sign_in(console, READER)
    console.shows("Busiest topics")
    console.go("#/topics/mine/live")
    console.shows("a record")
    assert READER not in console.evaluate(
        "document.body.innerHTML + location.href + document.cookie"
    )
    console.browser.open("about:blank")
    console.browser.open(f"{console.url}#/topics/mine/live")
    console.shows("a record")
    console.click("sign out")
    console.shows("API key")
    assert console.evaluate("Object.keys(sessionStorage)") in ([], ["topics-denied"])


def test_a_removed_key_is_requested_again(console: Console) -> None:
    sign_in(console, READER)
    console.go("#/topics/mine/live")
    console.shows("a record")
    console.evaluate("sessionStorage.setItem('topics-key', 'gone')")
    console.browser.open("about:blank")
    console.browser.open(f"{console.url}#/topics/mine/live")
    console.shows("the server does not accept this key")


def test_with_a_read_only_key_the_console_names_the_missing_scope(
    console: Console,
) -> None:
    sign_in(console, READER)
    console.go("#/topics/mine/publish")
    console.fill("Data", "1")
    console.click("Append")
    console.shows("the key lacks the scope write", "read only")
    assert console.wait(console.is_off("Append"))
    console.go("#/queues/jobs/dead")
    assert console.wait(console.is_off("Redrive all"))
    assert console.evaluate(
        "[...document.querySelectorAll('button')].find((e) => e.disabled).title"
    ) == ("the key lacks the scope write")
    console.go("#/topics/mine/config")
    console.fill("ttl_ms", "1000")
    console.click("Save")
    console.shows("the key lacks the scope admin")
    assert console.wait(console.is_off("Save"))
    console.click("Delete the topic")
    console.fill("Type mine", "mine")
    console.click("Delete", "dialog")
    console.shows("the key lacks the scope delete")
    console.evaluate("document.querySelector('dialog').close()")
    assert console.wait(console.is_off("Delete the topic"))
    console.click("sign out")
    sign_in(console, ADMIN_KEY)  # the scopes that the other key lacks do not matter now
    assert console.wait(f"({console.is_off('Delete the topic')}) === false")


def test_a_key_with_a_prefix_sees_its_topics_and_an_error_for_others(console: Console) -> None:
    sign_in(console, WRITER)
    console.go("#/topics")
    console.shows("mine.dead")
    assert "jobs" not in console.text
    console.go("#/topics/jobs/publish")
    console.fill("Data", "1")
    console.click("Append")
    console.shows("the name is outside the key's prefixes")
    console.go("#/topics/mine/publish")
    console.fill("Data", '"by the writer"')
    console.click("Append")
    console.shows("Appended as")

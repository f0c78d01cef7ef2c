"""How the client chooses its server and key: argument, environment, context."""

from __future__ import annotations

from pathlib import Path

import pytest

from topics.client.errors import Invalid, Refused
from topics.client.settings import DEFAULT_URL, Target, contexts_file, read_contexts, resolve

PROD = 'current = "prod"\n[contexts.prod]\nurl = "https://prod.test/"\nkey_file = "{key}"\n'
LAB = '[contexts.lab]\nurl = "http://lab:4000"\nkey = "lab-key"\n'


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TOPICS_URL", "TOPICS_API_KEY", "TOPICS_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def contexts(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("prod-key\nnot this\n")
    contexts_file().parent.mkdir()
    contexts_file().write_text(PROD.format(key=key) + LAB)


def test_without_settings_the_server_is_the_local_one() -> None:
    assert resolve() == Target(DEFAULT_URL, None)
    assert read_contexts().by_name == {}


def test_the_argument_takes_precedence_over_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://env:1")
    monkeypatch.setenv("TOPICS_API_KEY", "env-key")
    assert resolve() == Target("http://env:1", "env-key")
    assert resolve("http://arg:2/", "arg-key") == Target("http://arg:2", "arg-key")


@pytest.mark.usefixtures("contexts")
def test_a_context_provides_url_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve() == Target("https://prod.test", "prod-key")
    assert resolve(context="lab") == Target("http://lab:4000", "lab-key")
    monkeypatch.setenv("TOPICS_CONTEXT", "lab")
    assert resolve() == Target("http://lab:4000", "lab-key")
    assert resolve(context="prod").url == "https://prod.test"
    with pytest.raises(Invalid, match="no context 'nope'"):
        resolve(context="nope")


@pytest.mark.usefixtures("contexts")
def test_the_key_of_a_context_is_sent_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("http://other:1") == Target("http://other:1", None)
    monkeypatch.setenv("TOPICS_URL", "http://env:1")
    assert resolve() == Target("http://env:1", None)
    monkeypatch.setenv("TOPICS_API_KEY", "env-key")
    assert resolve(context="lab") == Target("http://lab:4000", "lab-key")


@pytest.mark.parametrize(
    "url", ["", "x", "ftp://h", "http://", "http://h/path", "http://h?q=1", "h:4000", "http://x y"]
)
def test_a_url_that_cannot_be_a_server_is_refused(url: str) -> None:
    if url:
        with pytest.raises(Invalid, match="not the URL of a server"):
            resolve(url)


@pytest.mark.parametrize("key", ["kéy", "two\nlines"])
def test_a_key_that_does_not_fit_a_header_field_is_refused(key: str) -> None:
    with pytest.raises(Refused):
        resolve(key=key)


@pytest.mark.parametrize(
    "text",
    ["[", "contexts = 5", "[contexts.a]\nwrong = 1", '[contexts.a]\nurl="x"\nkey_file="/nope"'],
)
def test_the_error_for_a_damaged_file_names_it(text: str) -> None:
    contexts_file().parent.mkdir()
    contexts_file().write_text(text)
    with pytest.raises(Invalid):
        resolve(context="a")

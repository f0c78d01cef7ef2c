"""The commands of contexts."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from topics.client.settings import Context, contexts_file, read_contexts


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / 'a "key" \\ fîle'
    path.write_text("secret\n")
    return path


def test_a_context_is_added_used_and_removed(
    topics: Run, url: str, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOPICS_URL")
    assert topics("context", "ls").err.startswith("topics: there are no contexts")
    assert topics("context", "add", "here", f"{url}/", "--use").err == "topics: here added\n"
    topics("context", "add", "far", "https://far.test", "--key-file", str(key_file))
    assert topics("context", "add", "own", "http://own", "--key", given='k"\\\n').code == 0
    assert read_contexts().by_name == {
        "here": Context(url),
        "far": Context("https://far.test", None, str(key_file)),
        "own": Context("http://own", 'k"\\'),
    }
    assert stat.S_IMODE(contexts_file().stat().st_mode) == 0o600
    assert [*contexts_file().parent.iterdir()] == [contexts_file()]
    assert topics("queue", "ls").code == 0
    assert topics("context", "ls").out.splitlines()[1:] == [
        f"   far   https://far.test        {key_file}",
        f"*  here  {url.ljust(22)}  -",
        "   own   http://own              in the contexts file",
    ]
    shown = topics("context", "ls", "--json")
    assert [(each["name"], each["key"] is not None) for each in shown.objects] == [
        ("far", True),
        ("here", False),
        ("own", True),
    ]
    assert 'k"' not in shown.out
    assert topics("context", "use", "far").err == "topics: the server is https://far.test\n"
    assert (
        topics("context", "rm", "far").err
        == "topics: far removed; there is no current context now\n"
    )
    assert read_contexts().current is None


def test_settings_that_override_a_context_are_reported(topics: Run) -> None:
    topics("context", "add", "a", "http://a")
    assert topics("context", "use", "a").err.endswith("TOPICS_URL is set and takes precedence\n")


def test_a_symbolic_link_to_the_contexts_file_is_kept(topics: Run, tmp_path: Path) -> None:
    contexts_file().parent.mkdir(parents=True)
    contexts_file().symlink_to(tmp_path / "elsewhere")
    topics("context", "add", "a", "http://a")
    assert contexts_file().is_symlink()
    assert (tmp_path / "elsewhere").read_text() == '[contexts.a]\nurl = "http://a"\n'


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["add", "a b", "http://x"], 2, "letters, digits"),
        (["add", "a", "ftp://x"], 2, "not the URL of a server"),
        (["add", "a", "http://x", "--key-file", "/nope"], 2, "the key cannot be read"),
        (["add", "a", "http://x", "--key-file", "/a\x7fb"], 2, "cannot be stored"),
        (["add", "a", "http://x", "--key-file", "k", "--key"], 2, "exclude each other"),
        (["add", "a", "http://x", "--key"], 5, "characters that are not allowed"),
        (["use", "a"], 2, "there is no context 'a' (known: none)"),
        (["rm", "a"], 2, "there is no context 'a'"),
        (["fly"], 2, "No such command"),
    ],
)
def test_invalid_contexts_are_refused(
    topics: Run, arguments: list[str], code: int, message: str
) -> None:
    done = topics("context", *arguments)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert topics("--json", "context", *arguments).error["code"]
    assert not contexts_file().exists()

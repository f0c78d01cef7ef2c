"""Completion: the names that shells offer, and the scripts for the shells."""

from __future__ import annotations

import os
import pty
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import ROOT, Run
from tests.support.program import Program
from topics import cli
from topics.client import Topics

Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(url: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any) -> Offered:
    """Return a function that completes the last word of a line."""

    def of(line: str) -> list[str]:
        monkeypatch.setenv("_TOPICS_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        capfdbinary.readouterr()
        with pytest.raises(SystemExit):
            cli.main([])
        monkeypatch.delenv("_TOPICS_COMPLETE")
        out, err = capfdbinary.readouterr()
        assert err == b""
        return [each.partition(",")[2] for each in out.decode().split()]

    return of


def test_commands_options_and_choices_are_offered(offered: Offered) -> None:
    assert offered("topics l") == ["ls"]
    assert "work" in offered("topics wo")
    assert offered("topics queue l") == ["leases", "ls"]
    assert offered("topics work --dr") == ["--drain"]
    assert offered("topics create x --durability ") == ["ephemeral", "memory", "disk", "fsync"]


def test_names_on_the_server_are_offered(offered: Offered, client: Topics, name: str) -> None:
    client.topic(f"{name}:a").put()
    client.topic(f"{name}:b").put()
    with client.cursor(f"{name}-c") as cursor:
        cursor.positions[f"{name}:a"] = 0, 1
    client.put_router(f"{name}-r", f"{name}:a", f"{name}:b")
    names = [f"{name}:a", f"{name}:b"]
    for command in (
        "info", "ls", "rm x", "config", "delete", "read", "tail -n 1", "export", "append",
        "work", "queue info", "queue peek", "queue redrive x --to", "router create r",
        "router create r x", "router ls --source", "cursor set x", "import x --to",
    ):  # fmt: skip
        assert offered(f"topics {command} {name}") == names, command
    assert offered(f"topics info {name}:a") == names[:1]
    assert offered(f"topics info cursor:{name}") == [f"cursor:{name}-c"]
    assert f"cursor:{name}-c" not in offered("topics info ")
    for command in ("cursor rm", "cursor ls", "cursor set"):
        assert offered(f"topics {command} {name}") == [f"{name}-c"]
    assert offered(f"topics router rm {name}") == [f"{name}-r"]


def test_contexts_are_offered_and_name_the_server(
    topics: Run, url: str, offered: Offered, client: Topics, name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    topics("context", "add", "far", "http://127.0.0.1:1")
    topics("context", "add", "here", url)
    client.topic(name).put()
    for command in ("context use", "context rm", "ls -c", "-c", "--context"):
        assert offered(f"topics {command} ") == ["far", "here"]
    assert offered("topics context use h") == ["here"]
    monkeypatch.delenv("TOPICS_URL")
    assert offered(f"topics -c here info {name}") == [name]
    assert offered(f"topics info -c here {name}") == [name]
    assert offered(f"topics info -c far {name}") == []
    assert offered(f"topics info -c nope {name}") == []
    assert offered(f"topics info --key-file /nope {name}") == []


def test_fields_of_a_config_are_offered_with_their_values(offered: Offered) -> None:
    assert offered("topics config x ttl") == ["ttl_ms="]
    assert offered("topics config x ttl_ms=7d cap_") == ["cap_records=", "cap_bytes="]
    assert offered("topics config x durability=") == [
        f"durability={each}" for each in ("ephemeral", "memory", "disk", "fsync")
    ]
    assert offered("topics config x auto_create=t") == ["auto_create=true"]
    assert offered("topics config x ttl_ms=") == []
    assert offered("topics create x --set disc") == ["discard=old", "discard=reject"]
    assert offered("topics router create r a b --set guarantee=e") == ["guarantee=exactly_once"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_completion_script(topics: Run, shell: str) -> None:
    done = topics("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_TOPICS_COMPLETE={shell}_complete" in done.out
    assert topics("completion", "ksh").code == 2


@pytest.mark.parametrize(("shell", "current"), [("zsh", "2"), ("fish", "NAME")])
def test_zsh_and_fish_are_offered_names(
    url: str, client: Topics, name: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any,
    shell: str, current: str,
) -> None:  # fmt: skip
    client.topic(f"{name}:a").put()
    monkeypatch.setenv("_TOPICS_COMPLETE", f"{shell}_complete")
    monkeypatch.setenv("COMP_WORDS", f"topics info {name}")
    monkeypatch.setenv("COMP_CWORD", current.replace("NAME", name))
    with pytest.raises(SystemExit):
        cli.main([])
    assert capfdbinary.readouterr().out.decode().replace("\n", ",").startswith(f"plain,{name}:a")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_tab_in_bash_completes_a_name_with_a_colon_and_a_value(
    url: str, client: Topics, name: str, tmp_path: Path
) -> None:
    """A person types, and the command that bash runs has the completed arguments."""
    client.topic(f"{name}:eu").append(1)
    program = tmp_path / "topics"
    program.write_text(
        f'#!/bin/sh\ncd {ROOT}\ntest -n "$_TOPICS_COMPLETE" || echo "$*" >> {tmp_path}/got\n'
        f'exec {sys.executable} -m topics "$@"\n'
    )
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "TERM": "dumb", "HOME": str(tmp_path)}
    ours, theirs = pty.openpty()
    with Program(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environ,
    ) as bash:  # fmt: skip
        os.close(theirs)
        for line in (
            'eval "$(topics completion bash)"\n',
            f"topics info {name}:e\t\n",
            f"topics config {name}:eu durabi\tm\t--dry-run max_de\t3\n",
            "exit\n",
        ):
            os.write(ours, line.encode())
        with suppress(OSError):  # the terminal is closed
            while os.read(ours, 4096):
                pass
        bash.wait(60)
    os.close(ours)
    assert (tmp_path / "got").read_text().splitlines() == [
        "completion bash",
        f"info {name}:eu",
        f"config {name}:eu durability=memory --dry-run max_deliveries=3",
    ]

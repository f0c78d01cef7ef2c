"""Notifications to systemd, and a server without systemd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.process.family_support import Systemd
from topics.process.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    systemd = Systemd(str(tmp_path / "notify"))
    with systemd.socket:
        yield systemd


@pytest.mark.parametrize(
    ("notify", "line"),
    [
        (Notifier.ready, "READY=1"),
        (Notifier.watchdog, "WATCHDOG=1"),
        (Notifier.stopping, "STOPPING=1"),
        (lambda notifier: notifier.extend_timeout(1500), "EXTEND_TIMEOUT_USEC=1500000"),
        (lambda notifier: notifier.status("replay 25 %"), "STATUS=replay 25 %"),
    ],
)
def test_each_notification_is_one_line_of_the_protocol(
    systemd: Systemd, notify: Callable[[Notifier], None], line: str
) -> None:
    notifier = Notifier(systemd.name)
    notify(notifier)
    assert systemd.next() == line
    notifier.close()


def test_a_status_is_sent_only_when_it_changes(systemd: Systemd) -> None:
    notifier = Notifier(systemd.name)
    for text in ("one", "one", "two", "one"):
        notifier.status(text)
    notifier.stopping()
    assert systemd.until("STOPPING=1")[:-1] == ["STATUS=one", "STATUS=two", "STATUS=one"]
    notifier.close()


def test_a_status_that_was_not_delivered_is_sent_again(tmp_path: Path) -> None:
    notifier = Notifier(str(tmp_path / "later"))
    with capture_logs() as logged:
        notifier.status("one")
        notifier.watchdog()
    assert [line["notification"] for line in logged] == ["STATUS=one"], "the loss is logged once"
    systemd = Systemd(str(tmp_path / "later"))
    with systemd.socket:
        notifier.status("one")
        assert systemd.next() == "STATUS=one"
    notifier.close()


def test_the_variables_of_systemd_are_removed_from_the_environment() -> None:
    environ = {"NOTIFY_SOCKET": "@x", "WATCHDOG_PID": "7", "WATCHDOG_USEC": "3000000", "A": "b"}
    notifier = Notifier.from_environment(environ, 7)
    assert notifier.watchdog_ms == 3000
    assert environ == {"A": "b"}
    notifier.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_PID": "8", "WATCHDOG_USEC": "3000000"},
        {"WATCHDOG_USEC": "soon"},
    ],
)
def test_a_watchdog_of_another_process_or_with_an_invalid_interval_is_ignored(
    environ: dict[str, str],
) -> None:
    notifier = Notifier.from_environment(environ, 7)
    assert notifier.watchdog_ms == 0
    notifier.ready()  # No process receives it

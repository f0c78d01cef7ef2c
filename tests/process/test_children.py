"""The fork of a child, and the signals and limits of a process."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from topics.process import children

ROOT = Path(__file__).parents[2]
ENDS = """
import os, sys, threading, time
from topics.process import children, logs

def end_of(main):
    return os.waitstatus_to_exitcode(os.waitpid(children.fork("child", main), 0)[1])

def fail():
    raise RuntimeError("raised by the test")

def fail_in_a_thread():
    threading.Thread(target=fail, name="a thread").start()
    time.sleep(60)

logs.configure("parent")
mains = (lambda: None), (lambda: sys.exit(7)), sys.exit, fail, fail_in_a_thread
print(*map(end_of, mains))
"""
NAME_AND_SIGNALS = """
import os, signal
from topics.process import children

def show():
    handlers = [signal.getsignal(each).name for each in (signal.SIGINT, signal.SIGTERM)]
    name = open("/proc/self/cmdline").read().split("\\0")[0]
    print(name, *handlers, *signal.pthread_sigmask(0, ()), flush=True)

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
signal.signal(signal.SIGTERM, lambda *_: None)
os.waitpid(children.fork("front 3", show), 0)
"""


DUMPABLE = """
import os
from topics.process import children

def show():
    print(children._libc.prctl(3, 0, 0, 0, 0), flush=True)  # PR_GET_DUMPABLE

show()
children.forbid_dumps()
show()
os.waitpid(children.fork("front 3", show), 0)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Fork in a separate process, because the process of the test has threads."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )


def test_a_child_exits_with_the_code_of_its_main_and_logs_uncaught_exceptions() -> None:
    done = run(ENDS)
    assert done.stdout.split() == ["0", "7", "0", "1", "1"]
    assert done.stderr.count('"process failed"') == 1
    assert done.stderr.count('"thread failed"') == 1
    assert done.stderr.count("RuntimeError: raised by the test") == 2


def test_a_child_has_its_own_name_and_inherits_no_signal_handler() -> None:
    assert run(NAME_AND_SIGNALS).stdout == "topics: front 3 SIG_IGN SIG_DFL\n"


def test_a_blocked_signal_is_received_once_and_a_wait_without_a_signal_returns_none() -> None:
    numbers = {signal.SIGUSR1, signal.SIGUSR2}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        assert children.wait_for_signal(numbers, 0.0) is None
        signal.raise_signal(signal.SIGUSR2)
        assert children.wait_for_signal(numbers, 0.0) is signal.SIGUSR2
        assert children.wait_for_signal(numbers, 0.001) is None, "the signal was received twice"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (0, {"exit_code": 0}),
        (3 << 8, {"exit_code": 3}),
        (signal.SIGKILL, {"signal": "SIGKILL"}),
        (signal.SIGSEGV | 0x80, {"signal": "SIGSEGV"}),
        (signal.SIGRTMIN, {"signal": "SIGRTMIN"}),
        (signal.SIGRTMIN + 1, {"signal": "SIG35"}),
    ],
)
def test_the_end_of_a_process_is_described_by_its_exit_code_or_its_signal(
    status: int, fields: dict[str, int | str]
) -> None:
    assert children.describe_exit(int(status)) == fields


@pytest.mark.parametrize(
    ("before", "hard", "after"),
    [
        (1024, 4096, 4096),
        (4096, 4096, 4096),
        (1024, resource.RLIM_INFINITY, children.FILES_MAX),
        (1024, 2 * children.FILES_MAX, children.FILES_MAX),
        (2 * children.FILES_MAX, 2 * children.FILES_MAX, 2 * children.FILES_MAX),
    ],
)
def test_the_file_limit_is_raised_to_the_hard_limit_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, before: int, hard: int, after: int
) -> None:
    limits_set: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (before, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _kind, limits: limits_set.append(limits))
    assert children.raise_file_limit() == (before, after)
    assert limits_set == ([(after, hard)] if after != before else [])


def test_a_file_limit_that_cannot_be_raised_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_kind: int, _limits: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (256, 4000))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert children.raise_file_limit() == (256, 256)


def test_memory_dumps_are_forbidden_for_the_process_and_its_children() -> None:
    assert run(DUMPABLE).stdout.split() == ["1", "0", "0"]

"""Lean imports: less is loaded, and everything works as without."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys

import pytest

from topics.process import lean_imports as module
from topics.process.lean_imports import lean_imports

PROGRAM = """
import sys
before = set(sys.modules)
from topics.process.lean_imports import lean_imports
with lean_imports():
    import crc32c, structlog, trio
{then}
"""


def output(then: str) -> str:
    command = [sys.executable, "-c", PROGRAM.format(then=then)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_what_nobody_calls_is_not_loaded() -> None:
    spared = {"importlib.metadata", "email", "zipfile", "asyncio.events", "asyncio.tasks"}
    assert output(f"print(sorted({spared} & (set(sys.modules) - before)))") == "[]"


def test_what_was_spared_can_be_loaded_later() -> None:
    assert output("import importlib.metadata as m; print(m.version('trio') != '')") == "True"
    assert output("import asyncio; print(asyncio.run(asyncio.sleep(0, 'slept')))") == "slept"
    assert output("from asyncio.events import get_event_loop_policy as f; print(bool(f()))")


def test_what_was_imported_works() -> None:
    assert output("print(hex(crc32c.crc32c(b'123456789')))") == "0xe3069283"
    assert output("trio.run(trio.sleep, 0); print(structlog.get_logger() is not None)") == "True"
    run = "print(trio.run(trio.to_thread.run_sync, lambda: 'from a thread'))"
    assert output(run) == "from a thread"


def test_the_loader_of_libraries_is_as_before() -> None:
    before = ctypes.util.find_library
    with lean_imports():
        during = ctypes.util.find_library
    assert during is not before
    assert ctypes.util.find_library is before


def test_without_glibc_libraries_are_searched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_find_library_slowly", lambda name: f"searched {name}")
    monkeypatch.setattr(module, "LIBPTHREAD", "no-such-library.so")
    with lean_imports():
        assert ctypes.util.find_library("pthread") == "searched pthread"
        assert ctypes.util.find_library("m") == "searched m"

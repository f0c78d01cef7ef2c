"""Interpreter switch interval: short in a shard, and Python's own without the switch."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from topics.config import Tuning
from topics.process import interpreter


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    usual = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual)


def test_a_shard_gives_its_threads_the_interpreter_sooner() -> None:
    interpreter.favour_log_threads()
    assert sys.getswitchinterval() == pytest.approx(interpreter.SHARD_S)


def test_without_the_switch_the_interval_is_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "TUNING", Tuning(switch_interval=False))
    usual = sys.getswitchinterval()
    interpreter.favour_log_threads()
    assert sys.getswitchinterval() == pytest.approx(usual)

"""Interpreter switch interval: shorter while the loop seals, and as before afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from topics.actors.shard import interpreter
from topics.config import Tuning


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    usual = sys.getswitchinterval()
    yield
    sys.setswitchinterval(usual)


def test_a_shard_gives_its_threads_the_interpreter_sooner_while_it_seals() -> None:
    interpreter.favour_log_threads()
    assert sys.getswitchinterval() == pytest.approx(interpreter.SHARD_S)
    with interpreter.sealing_interval():
        assert sys.getswitchinterval() == pytest.approx(interpreter.SEALING_S)
    assert sys.getswitchinterval() == pytest.approx(interpreter.SHARD_S)


def test_an_error_restores_the_interval() -> None:
    usual = sys.getswitchinterval()
    with pytest.raises(OSError, match="full"), interpreter.sealing_interval():
        raise OSError("full")
    assert sys.getswitchinterval() == pytest.approx(usual)


def test_a_shorter_interval_stays() -> None:
    sys.setswitchinterval(interpreter.SEALING_S / 2)
    with interpreter.sealing_interval():
        assert sys.getswitchinterval() <= interpreter.SEALING_S / 2


def test_without_the_switch_the_interval_is_pythons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "TUNING", Tuning(switch_interval=False))
    usual = sys.getswitchinterval()
    interpreter.favour_log_threads()
    with interpreter.sealing_interval():
        assert sys.getswitchinterval() == pytest.approx(usual)

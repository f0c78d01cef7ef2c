"""Fixtures, hooks and Hypothesis profiles for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import topics.process  # noqa: F401 - structlog without rich: a traceback takes that two seconds
from tests.support.server import Server
from tests.support.zygote import Zygote

# Hypothesis does not limit the duration of examples, because it depends on the machine. In a new
# checkout it also includes the time to build a Unicode table. pytest-timeout stops tests that hang.
# On a build server each run uses the same examples, so that its result depends only on the change;
# all other runs generate new examples.
settings.register_profile(
    "topics",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.register_profile("quick", settings.get_profile("topics"), max_examples=15)
settings.load_profile("topics")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell script has started this run in the background, with SIGINT ignored. Without this, the
    # programs that tests start would also ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

AGAIN_PART = 8  # of a timeout, between its alarms


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """Repeat the alarm of a timeout. The first alarm only interrupts the current wait of a test.
    Its cleanup may then wait for a thread or a process, forever without a second alarm.
    """
    is_set = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout / AGAIN_PART)
    return is_set


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup() -> Generator[None]:
    """Cancel the alarm after a failure, so that it does not interrupt the report of pytest."""
    try:
        yield
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.fixture(scope="session", autouse=True)
def first_example() -> None:
    """Run one example, so that Hypothesis creates its random number generator before a test calls
    `gc.freeze`, as server processes do. Hypothesis cannot find the referrers of a frozen generator
    and would warn.
    """

    @given(st.none())
    def run(_: None) -> None:
        pass

    run()


@pytest.fixture(scope="session", autouse=True)
def forked_servers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Fork servers from a process that has imported everything, except in coverage runs."""
    if pytestconfig.getoption("cov_source", None):
        yield
        return
    Server.zygote = Zygote()
    yield
    Server.zygote.close()
    Server.zygote = None


@pytest.fixture(scope="module")
def started_servers(forked_servers: None) -> Iterator[None]:
    """Start servers as programs, for tests that inspect a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "zygote", None)
        yield

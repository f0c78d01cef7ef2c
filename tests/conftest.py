"""What holds for every test."""

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

# How fast an example is made or run says something about the machine (and, in a fresh checkout,
# about a table of Unicode that Hypothesis makes at the first text), nothing about what the test
# proves. pytest-timeout ends what hangs. A build server judges a change by the same examples each
# time; every other run looks for new ones.
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
    # A shell script has started this run in the background. Programs that tests start would ignore
    # Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

AGAIN_PART = 8  # of a timeout, between its alarms


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Any) -> Generator[None, object, object]:
    """The alarm of a timeout comes again and again. One alarm ends the first wait of a test; the
    second wait, for the end of a thread or of a process on the way out, would last for ever.
    """
    is_set = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, settings.timeout / AGAIN_PART)
    return is_set


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup() -> Generator[None]:
    """While pytest tells of a failure, no alarm may come."""
    try:
        yield
    except BaseException:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.fixture(scope="session", autouse=True)
def first_example() -> None:
    """Hypothesis makes its generator of random numbers before any test freezes objects, as a
    process of a server does: of a frozen one it cannot see who refers to it, and warns.
    """

    @given(st.none())
    def run(_: None) -> None:
        pass

    run()


@pytest.fixture(scope="session", autouse=True)
def forked_servers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Servers are forked from one that has imported everything; not where lines are traced."""
    if pytestconfig.getoption("cov_source", None):
        yield
        return
    Server.zygote = Zygote()
    yield
    Server.zygote.close()
    Server.zygote = None


@pytest.fixture(scope="module")
def started_servers(forked_servers: None) -> Iterator[None]:
    """Servers are started as programs: for tests that look into a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "zygote", None)
        yield

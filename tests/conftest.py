"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

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

"""Invalid environments, for tests of settings and keys."""

from __future__ import annotations

import pytest

from topics.config import ConfigError
from topics.process import boot


def mistakes(environ: dict[str, str]) -> dict[str, str]:
    """Return every problem of the environment by its variable."""
    with pytest.raises(ConfigError) as refused:
        boot.read(environ)
    return {problem.variable: str(problem) for problem in refused.value.problems}

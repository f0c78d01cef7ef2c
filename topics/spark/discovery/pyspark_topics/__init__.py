"""Registers ``format("topics")`` automatically.

Spark imports each top-level module whose name starts with ``pyspark_`` and registers its
``DefaultSource``. A wheel installs this module next to the package ``topics``.
"""

from __future__ import annotations

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    """Return ``DefaultSource``, which is imported when it is first used.

    If a module raises any error except AttributeError, Spark ignores the sources of all packages.
    So a missing dependency is an AttributeError, with a warning on stderr.
    """
    if name != "DefaultSource":
        raise AttributeError(name)
    from topics.spark import data_source

    try:
        return data_source()
    except ModuleNotFoundError as missing:
        sys.stderr.write(
            f'warning: no format("topics"): {missing.name} is not installed: pip install'
            " 'topics-engine[spark]'\n"
        )
        raise AttributeError(name) from missing

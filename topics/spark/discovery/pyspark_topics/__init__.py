"""Registers ``format("topics")`` automatically.

Spark imports each top-level module whose name starts with ``pyspark_`` and registers its
``DefaultSource``. A wheel installs this module next to the package ``topics``.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Return ``DefaultSource``, which is imported on its first use."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from topics.spark import discovered

    return discovered()

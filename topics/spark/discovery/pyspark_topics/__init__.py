"""``format("topics")`` for Spark, without registration.

Spark imports every top-level module whose name begins with ``pyspark_`` and takes its
``DefaultSource``. A wheel installs this package at the top level, beside the package ``topics``.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """``DefaultSource``, imported when Spark asks for it."""
    if name != "DefaultSource":
        raise AttributeError(name)
    from topics.spark import discovered

    return discovered()

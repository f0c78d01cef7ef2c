"""The default limits of a server."""

from __future__ import annotations

from topics.config import Settings
from topics.formats.api.limits import limits_of

LIMITS = limits_of(Settings())

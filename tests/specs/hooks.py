"""Hooks of schemathesis in addition to the document: limit the time that requests wait for records
or jobs.
"""

from __future__ import annotations

from typing import Any

import schemathesis

WAIT_MS_MAX = 20


@schemathesis.hook
def before_call(_context: Any, case: schemathesis.Case[Any], _kwargs: Any) -> None:
    """Limit the wait of a diff and of a claim."""
    if isinstance(case.body, dict) and isinstance(wait_ms := case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(wait_ms, WAIT_MS_MAX)

"""Specifications: serves the machine-readable documents of this API.

    GET   /v0/openapi.json     OpenAPI 3.1: all HTTP routes
    GET   /v0/asyncapi.json    AsyncAPI 3.1: the events of streams, the messages of a WebSocket

`tests.specs` generates them from the route table and the structs that validate requests. They are
stored with the documentation. No key is needed, unless TOPICS_PROBE_AUTH is set, because they
contain no data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import topics
from topics.front.data.files import File, row

FOLDER: Final = Path(topics.__file__).parent / "docs"
OPENAPI, ASYNCAPI = "/v0/openapi.json", "/v0/asyncapi.json"

ROUTES: Final = dict(
    row(path, "spec", File.read(FOLDER / path.rpartition("/")[2], b"application/json"))
    for path in (OPENAPI, ASYNCAPI)
)

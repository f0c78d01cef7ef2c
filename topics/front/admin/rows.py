"""The routes of the admin plane.

Their views are in other modules, so that the route table does not import Quart.
"""

from __future__ import annotations

from topics.engine.access import Scope
from topics.front.admin import paging
from topics.front.queries import Parameter, boolean, name_text, text
from topics.front.route import BodyRule, Route

# Query parameters.
PREFIX = Parameter("prefix", name_text, default="")
NAME_CURSOR: Parameter[str | None] = Parameter("cursor", paging.NAMES.decode, default=None)
SEQ_CURSOR = Parameter("cursor", paging.SEQS.decode, default=0)
TOUCH = Parameter("touch", boolean, default=False)
SOURCE: Parameter[str | None] = Parameter("source", name_text, default=None)
DEST: Parameter[str | None] = Parameter("dest", name_text, default=None)
NODE: Parameter[str | None] = Parameter("node", text, default=None)

# Rows.
ROUTER = "/v0/routers/:router"
TOPIC_LIST = Route(
    *("GET", "/v0/topics", "topic.list", Scope.READ),
    parameters=(PREFIX, paging.SIZE, NAME_CURSOR, TOUCH),
)
LEASES = Route(
    *("GET", "/v0/topics/:topic/leases", "queue.leases", Scope.READ),
    parameters=(paging.SIZE, SEQ_CURSOR, NODE),
)
REDRIVE = Route(
    *("POST", "/v0/topics/:topic/redrive", "queue.redrive", Scope.READ | Scope.WRITE),
    body=BodyRule.OPTIONAL,
    is_audited=True,
)
ROUTER_PUT = Route(
    *("PUT", ROUTER, "router.put", Scope.ADMIN), body=BodyRule.REQUIRED, is_audited=True
)
ROUTER_GET = Route("GET", ROUTER, "router.get", Scope.READ)
ROUTER_DELETE = Route("DELETE", ROUTER, "router.delete", Scope.DELETE, is_audited=True)
ROUTER_LIST = Route(
    *("GET", "/v0/routers", "router.list", Scope.READ),
    parameters=(PREFIX, SOURCE, DEST, paging.SIZE, NAME_CURSOR),
)
# By default, Prometheus requests /metrics.
METRICS, METRICS_AT_ROOT = (
    Route("GET", path, "metrics", Scope.READ, negotiates=True, answers_in_drain=True)
    for path in ("/v0/metrics", "/metrics")
)
ROWS = (
    *(TOPIC_LIST, LEASES, REDRIVE, ROUTER_PUT, ROUTER_GET, ROUTER_DELETE, ROUTER_LIST),
    *(METRICS, METRICS_AT_ROOT),
)

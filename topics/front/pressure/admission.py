"""Admission of an append under pressure: asked only while a front is not calm.

The answer to a refused append is held back a moment. A client that waits as it was told does not
notice; one that comes back at once cannot spend on refusals what they save.
"""

from __future__ import annotations

from functools import partial

import trio

from topics.errors import Throttled
from topics.formats.api.backpressure import opts_out
from topics.formats.buffers import Buffer
from topics.front.answers import Answer
from topics.front.backend import Body
from topics.front.pressure.pressure import Pressure
from topics.front.request import Request

REFUSAL_HOLD_S = 0.1
# A longer body has cost what a refusal could save, and its opt-out takes long to find.
REFUSABLE_MAX_BYTES = 4 << 20


def refusal_of(pressure: Pressure, request: Request, body: Body) -> Throttled | None:
    """Why an append is refused, if it is; its body is freed then."""
    view = body if isinstance(body, Buffer) else body.view
    key = request.principal.digest
    try:
        pressure.check_write(key, request.topic, request.shard, partial(may_not_be_refused, view))
    except Throttled as refusal:
        if not isinstance(body, Buffer):
            body.free()
        return refusal
    return None


async def hold_back(refusal: Throttled) -> Answer:
    """Refuse, a moment later."""
    await trio.sleep(REFUSAL_HOLD_S)
    raise refusal


def may_not_be_refused(body: Buffer) -> bool:
    """Whether an append of this body is let in whatever the pressure."""
    return len(body) > REFUSABLE_MAX_BYTES or opts_out(body)


async def park_append(pressure: Pressure, band: int, body: Body) -> float:
    """Wait while appends of higher bands go first. Returns the milliseconds of the wait."""
    try:
        return await pressure.turns.park(band)
    except BaseException:  # the client is gone
        if not isinstance(body, Buffer):
            body.free()
        raise

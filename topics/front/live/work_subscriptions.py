"""Work subscriptions (§10.8): connect the work streams of a front to their shards, by number.

    open --work.open--> shard --work.jobs, work.ended--> worker
      |                   ^
      '-- the client disconnects, at any time: work.close

A shard may send jobs before the client's socket is ready, so early messages are kept. There is at
most one page of them, because the shard sends the next page after `taken`. A subscription holds a
stream slot (§11) from before `work.open` until `close`, because opening leases jobs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from topics.actors.rpc.replies import restored
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Principal
from topics.errors import NotReady, TopicsError
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    WORK_CLOSE,
    WORK_OPEN,
    WORK_TAKEN,
    WorkCloseParams,
    WorkEndedParams,
    WorkJobsParams,
    WorkOpenParams,
    WorkTakenParams,
)
from topics.front.error_answers import status_of
from topics.front.limits import Slots
from topics.front.live.streams import Stream
from topics.front.pressure.pressure import Pressure


class JobReceiver(Stream):
    """The interface of the stream that pushes jobs to a client (`WorkStream`)."""

    @abstractmethod
    def show(self, params: WorkJobsParams, jobs: bytes) -> None:
        """Push jobs to the client."""


class WorkSubscription:
    """The subscription of one work stream. `deliver` forwards the messages of its shard."""

    def __init__(self, number: int, shard: int, topic: str, principal: Principal) -> None:
        self.number, self.shard, self.topic, self.principal = number, shard, topic, principal
        self.is_closed = False
        self.pages = 0  # number of job pages that were sent to the client
        self._receiver: JobReceiver | None = None
        self._early: list[Callable[[JobReceiver], None]] = []

    def deliver(self, call: Callable[[JobReceiver], None]) -> None:
        """Call ``call`` with the receiver, now or when `begin` sets the receiver."""
        if self._receiver is None:
            if not self.is_closed:
                self._early.append(call)
        else:
            self._receiver.attempt(call, self._receiver)

    def begin(self, receiver: JobReceiver) -> None:
        """Deliver the early messages to the receiver, and all later ones immediately."""
        self._receiver = receiver
        early, self._early = self._early, []
        for call in early:
            self.deliver(call)

    def discard(self) -> None:
        """Drop the receiver and undelivered messages, because the client has disconnected."""
        self._receiver, self._early = None, []


class WorkSubscriptions:
    """All work subscriptions of a front. `Live` forwards the messages of shards to it."""

    def __init__(
        self,
        shards: Shards,
        slots: Slots,
        pressure: Pressure,
        call_in: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._shards, self._slots = shards, slots
        self._pressure, self._call_in = pressure, call_in
        self._last_number = 0
        # The open subscriptions, by number.
        self.by_number: dict[int, WorkSubscription] = {}

    # Requests from streams

    async def open(
        self,
        shard: int,
        topic: str,
        principal: Principal,
        *,
        node: str,
        max_jobs: int,
        lease_ms: int | None,
    ) -> WorkSubscription:
        """Open a subscription. The caller must call `close` afterwards.

        Raise `Throttled` if no slot is free, or the exceptions of `Shards.call`.
        """
        self._slots.acquire(principal)
        self._last_number += 1
        subscription = WorkSubscription(self._last_number, shard, topic, principal)
        self.by_number[subscription.number] = subscription
        params = WorkOpenParams(subscription.number, topic, node, max_jobs, lease_ms)
        try:
            (await self._shards.answer(shard, WORK_OPEN, params)).release()
        except BaseException:
            # A shard that has stalled, or has not received the cancellation yet, may still open the
            # subscription.
            self.close(subscription)
            raise
        return subscription

    def taken(self, subscription: WorkSubscription) -> None:
        """Let the shard send the next jobs, because the socket has accepted all earlier ones.

        Under pressure, the shard is notified after a pause.
        """
        pause_s = self.pause_s(subscription)
        if pause_s:
            self._call_in(pause_s, partial(self._confirm_taken, subscription))
        else:
            self._confirm_taken(subscription)

    def pause_s(self, subscription: WorkSubscription) -> float:
        """Return the seconds by which the next jobs are delayed."""
        pressure = self._pressure
        return pressure.pause_s(subscription.shard, pressure.bands.of(subscription.topic))

    def _confirm_taken(self, subscription: WorkSubscription) -> None:
        """Notify the shard, unless the subscription was closed in the meantime."""
        if subscription.number in self.by_number:
            params = WorkTakenParams(subscription.number)
            self._shards.notify(subscription.shard, WORK_TAKEN, params)

    def close(self, subscription: WorkSubscription) -> None:
        """Close the subscription, so that the shard releases its leases.

        Call this when the client disconnects, also before the stream has begun. Safe to call twice.
        """
        if subscription.is_closed:
            return
        subscription.is_closed = True
        subscription.discard()
        self._slots.release(subscription.principal)
        # From the number of delivered pages, the shard determines which jobs the client has not
        # received.
        if self.by_number.pop(subscription.number, None) is not None:
            params = WorkCloseParams(subscription.number, subscription.pages)
            self._shards.notify(subscription.shard, WORK_CLOSE, params)

    # Messages from shards

    def jobs(self, shard: int, params: WorkJobsParams, jobs: Buffer) -> None:  # noqa: ARG002 - the front assigns the numbers
        """Deliver jobs to a work stream. ``jobs`` is valid until this function returns."""
        subscription = self.by_number.get(params.work)
        if subscription is not None:
            body = bytes(jobs)
            subscription.deliver(lambda receiver: receiver.show(params, body))

    def work_ended(self, shard: int, params: WorkEndedParams) -> None:  # noqa: ARG002 - the front assigns the numbers
        """Send the error with which a shard has ended a work stream, and end the stream."""
        subscription = self.by_number.pop(params.work, None)
        if subscription is not None:
            _fail(subscription, restored(params.error, params.message, {}))

    def closed(self, shard: int) -> None:
        """End all work streams of a shard that went down. The shard has released their leases."""
        for subscription in [one for one in self.by_number.values() if one.shard == shard]:
            del self.by_number[subscription.number]
            _fail(subscription, NotReady("the shard of this topic has stopped"))


def _fail(subscription: WorkSubscription, failure: TopicsError) -> None:
    subscription.deliver(lambda receiver: receiver.fail(status_of(failure), failure.message))

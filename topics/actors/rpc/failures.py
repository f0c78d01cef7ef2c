"""The former place of what `topics.actors.rpc.replies` holds."""

from topics.actors.rpc.replies import failure_of as failure_of
from topics.actors.rpc.replies import failures_of as failures_of
from topics.actors.rpc.replies import restored as restored

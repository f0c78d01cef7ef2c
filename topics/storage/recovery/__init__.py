"""Recovery: how a shard's data is opened, from checkpoint, segments, log and blobs."""

from topics.storage.recovery.steps import Shard as Shard
from topics.storage.recovery.steps import recover as recover

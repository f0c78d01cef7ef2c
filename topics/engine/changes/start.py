"""Start: a process takes over what the one before it left.

decide        after the last frame of a replay: what the restart took is told as lost
replay        a START frame: the reservations of `$ts` before it are over
replay_lost   a LOST frame, which a repair has put in the place of frames that could not be read:
              seqs of a topic are damaged; or any topic may have had some, and goes on above them if
              no later frame shows its head

What unreadable frames said besides is not known: records that they deleted are back, settings that
they changed are as they were, a job that they leased is free.
"""

from __future__ import annotations

from topics.engine.changes import put_topic
from topics.engine.losses import lose, lose_damaged
from topics.engine.now import Now
from topics.engine.queue.jobs import Watched
from topics.engine.queue.queue_replay import begin
from topics.engine.removal import begin_at, settle
from topics.engine.replay import Replay
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import TS_AHEAD_MS, decode_losses
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.ranges import SeqRange, united


def decide(
    replay: Replay,
    now: Now,
    watched: Watched = iter,
    *,
    clean: bool,
    tail_may_be_lost: bool,
) -> list[Frame]:
    """Settle every topic after the last frame of the replay. Where seqs may have gone with unsynced
    records, or with records in memory, the topic goes on above the reserved ones; where records in
    memory have gone, at the reserved `$ts`.

    ``watched`` passes the topics and their jobs on, and sees the progress. ``clean``: the process
    before ended in order. The frames tell the next replay: they must be synced before the first
    write.
    """
    frames: list[Frame] = []
    table = replay.table
    topics = table.by_id.values()
    for topic in [each for each in topics if table.by_name.get(each.name) is not each]:
        table.remove(topic)  # the frame that deleted it is lost, and a later topic has its name
    for topic in watched(table.by_name.values()):
        topic.head_seq = max(topic.head_seq, replay.restored_head(topic))
        is_doubtful = settle_doubt(replay, topic)
        durability = topic.config.durability
        # The frame that made a topic `fsync` was synced with every write before it, and holds the
        # head.
        at_risk = durability == "ephemeral" or (tail_may_be_lost and durability != "fsync")
        is_skipping = not clean and at_risk and topic.head_seq < topic.reserved_seq
        if is_skipping:
            lose(topic, SeqRange(topic.head_seq + 1, topic.reserved_seq))
        topic.next_seq = topic.head_seq + 1
        _lose_damaged_again(topic, table.store)
        settle(topic, table.store)
        begin(topic, table.store, now, watched)
        if is_skipping or is_doubtful:
            # The log knows every seq that was given in another class, and with it the last `$ts`.
            if durability == "ephemeral":
                topic.last_ts = max(topic.last_ts, table.reserved_ts)
            frames.append(put_topic.frame_of(topic, now))
    # As the START frame says that follows.
    table.reserved_ts = table.reserving_ts = now.ts + TS_AHEAD_MS
    return frames


def _lose_damaged_again(topic: Topic, store: Store) -> None:
    """Writes that were found damaged before the stop, and are not sealed since, came back with the
    log.
    """
    index = topic.index
    for first, last in topic.damaged:
        at = index.find(first)
        while at < len(index):
            first_seq, count, _, _ = index.entry(at)
            if first_seq + count - 1 > last:
                break
            if max(first_seq, topic.start_seq) >= first:
                lose_damaged(topic, at, store)
            else:
                at += 1


def replay(replay: Replay, header: FrameHeader, _body: Buffer, _checkpointed: bool) -> None:
    """What was reserved before is in the topics."""
    replay.table.reserved_ts = header.ts_ms + TS_AHEAD_MS


# Frames that could not be read


def replay_lost(replay: Replay, header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """A LOST frame."""
    for topic_id, first_seq, seqs in decode_losses(header, body):
        if topic_id:
            _replay_loss(replay, topic_id, first_seq, seqs)
        else:
            replay.doubt_heads(header.lsn, seqs)


def _replay_loss(replay: Replay, topic_id: int, first_seq: int, seqs: int) -> None:
    table = replay.table
    table.last_id = max(table.last_id, topic_id)
    topic = table.by_id.get(topic_id)
    if not seqs:
        return
    lost = SeqRange(first_seq, first_seq + seqs - 1)
    if topic is None:
        replay.orphans.setdefault(topic_id, []).append(lost)
    elif lost.last >= topic.start_seq:  # also where the checkpoint knows the head
        _lose_end(topic, SeqRange(max(lost.first, topic.start_seq), lost.last))


def settle_doubt(replay: Replay, topic: Topic) -> bool:
    """After the last frame: let the topic go on above all seqs that it may have lost; whether it
    may.
    """
    doubt = replay.doubts.get(topic.id)
    if doubt is None or topic.head_seq > doubt.head_seq:
        return False
    _lose_end(topic, SeqRange(topic.head_seq + 1, topic.head_seq + doubt.seqs))
    return True


def _lose_end(topic: Topic, lost: SeqRange) -> None:
    """Twice does no harm."""
    topic.damaged = united(topic.damaged, (lost,))
    topic.head_seq = max(topic.head_seq, lost.last)
    topic.next_seq = topic.head_seq + 1
    begin_at(topic, topic.start_seq if topic.count else max(topic.start_seq, lost.last + 1))

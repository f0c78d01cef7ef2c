"""Start: completes the replay, so that the new process can continue the work of the previous one.

    decide        runs after the last frame of the replay, and marks the seqs that the restart has
                  lost
    replay        replays a START frame: the reservations of `$ts` before it are no longer needed
    replay_lost   replays a LOST frame, which a repair has written in place of frames that could not
                  be read; either seqs of a topic are damaged, or any topic may have lost some seqs
                  and continues above them, unless a later frame contains its head

The other effects of unreadable frames are unknown. Records that they deleted are live again,
settings that they changed have their former values, and jobs that they leased are free.
"""

from __future__ import annotations

from topics.engine.changes import put_topic
from topics.engine.losses import mark_damaged, mark_lost
from topics.engine.now import Now
from topics.engine.queue.jobs import Watched
from topics.engine.queue.queue_replay import begin
from topics.engine.removal import begin_at, settle
from topics.engine.replay import Replay
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.engine.topic_table import TopicTable
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import TS_AHEAD_MS, decode_losses
from topics.formats.disk.frames import Frame, FrameHeader
from topics.formats.ranges import SeqRange, union


def decide(
    replay: Replay,
    now: Now,
    watched: Watched = iter,
    *,
    clean: bool,
    tail_may_be_lost: bool,
) -> list[Frame]:
    """Settle every topic after the last frame of the replay. Return frames for the next replay.

    A topic continues above its reserved seqs if seqs may be lost, either with unsynced records or
    with records in memory. If records in memory are lost, it also continues at the reserved `$ts`.

    ``watched`` wraps an iterable of topics or jobs and counts its items, to report the progress.
    ``clean``: the previous process was shut down cleanly. The caller must sync the frames before
    the first write.
    """
    frames: list[Frame] = []
    table = replay.table
    topics = table.by_id.values()
    for topic in [each for each in topics if table.by_name.get(each.name) is not each]:
        # The TOPIC_DELETED frame for this topic is lost, and a later topic has its name.
        table.remove(topic)
    # For each topic: determine its head, skip seqs that may be lost, apply damage, then start its
    # jobs.
    for topic in watched(table.by_name.values()):
        topic.head_seq = max(topic.head_seq, replay.restored_head(topic))
        is_uncertain = settle_uncertain_head(replay, topic)
        durability = topic.config.durability
        # A topic of class `fsync` is never at risk, because the TOPIC frame that made it `fsync`
        # contains its head, and was synced together with every write before it.
        at_risk = durability == "ephemeral" or (tail_may_be_lost and durability != "fsync")
        is_skipping = not clean and at_risk and topic.head_seq < topic.reserved_seq
        if is_skipping:
            mark_lost(topic, SeqRange(topic.head_seq + 1, topic.reserved_seq))
        topic.next_seq = topic.head_seq + 1
        _mark_damaged_again(topic, table.store)
        settle(topic, table.store)
        begin(topic, table.store, now, watched)
        if is_skipping or is_uncertain:
            # Only records in memory are covered by the reservation of `$ts`. The replay of other
            # records has restored the last `$ts`.
            if durability == "ephemeral":
                topic.last_ts = max(topic.last_ts, table.reserved_ts)
            frames.append(put_topic.frame_of(topic, now))
    # The START frame, which follows, makes the same reservation.
    table.reserved_ts = table.reserving_ts = now.ts + TS_AHEAD_MS
    return frames


def skip_seqs(table: TopicTable, count: int, now: Now) -> list[Frame]:
    """Let each topic continue ``count`` seqs above its head, and mark these seqs as lost.

    This is used for a copy of a server. The server may have assigned these seqs after the copy was
    made. Return frames for the next replay.
    """
    frames = []
    for topic in table.by_name.values():
        mark_lost(topic, SeqRange(topic.head_seq + 1, topic.head_seq + count))
        topic.next_seq = topic.head_seq + 1
        topic.reserved(topic.head_seq)
        settle(topic, table.store)
        frames.append(put_topic.frame_of(topic, now))
    return frames


def _mark_damaged_again(topic: Topic, store: Store) -> None:
    """Remove unsealed writes that were found damaged before the shutdown.

    The replay of the log has added them again.
    """
    index = topic.index
    for first, last in topic.damaged:
        at = index.find(first)
        while at < len(index):
            first_seq, count, _, _ = index.entry(at)
            if first_seq + count - 1 > last:
                break
            if max(first_seq, topic.start_seq) >= first:
                mark_damaged(topic, at, store)
            else:
                at += 1


def replay(replay: Replay, header: FrameHeader, _body: Buffer, _checkpointed: bool) -> None:
    """Replay a START frame. The topics already contain the effects of earlier reservations."""
    replay.table.reserved_ts = header.ts_ms + TS_AHEAD_MS


# Frames that could not be read


def replay_lost(replay: Replay, header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
    """Replay a LOST frame."""
    for topic_id, first_seq, seqs in decode_losses(header, body):
        if topic_id:
            _replay_loss(replay, topic_id, first_seq, seqs)
        else:
            replay.mark_heads_uncertain(header.lsn, seqs)


def _replay_loss(replay: Replay, topic_id: int, first_seq: int, seqs: int) -> None:
    table = replay.table
    table.last_id = max(table.last_id, topic_id)
    topic = table.by_id.get(topic_id)
    if not seqs:
        return
    lost = SeqRange(first_seq, first_seq + seqs - 1)
    if topic is None:
        replay.orphans.setdefault(topic_id, []).append(lost)
    elif lost.last >= topic.start_seq:
        # Mark the seqs even if the head in the checkpoint is above them.
        _mark_end_damaged(topic, SeqRange(max(lost.first, topic.start_seq), lost.last))


def settle_uncertain_head(replay: Replay, topic: Topic) -> bool:
    """After the last frame, let the topic continue above all seqs that it may have lost.

    Return whether it may have lost any.
    """
    uncertain = replay.uncertain_heads.get(topic.id)
    if uncertain is None or topic.head_seq > uncertain.head_seq:
        return False
    _mark_end_damaged(topic, SeqRange(topic.head_seq + 1, topic.head_seq + uncertain.seqs))
    return True


def _mark_end_damaged(topic: Topic, lost: SeqRange) -> None:
    """Mark the seqs as damaged, and raise the head above them. Repeating this has no effect."""
    topic.damaged = union(topic.damaged, (lost,))
    topic.head_seq = max(topic.head_seq, lost.last)
    topic.next_seq = topic.head_seq + 1
    begin_at(topic, topic.start_seq if topic.count else max(topic.start_seq, lost.last + 1))

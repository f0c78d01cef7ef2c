"""Lost: what frames said that could not be read any more, as far as that is known.

replay   a LOST frame, which a repair has put in their place: seqs of a topic are damaged; or any
         topic may have had some, and goes on above them if no later frame shows its head (`settle`)

What such frames said besides is not known: records that they deleted are back, settings that they
changed are as they were, a job that they leased is free.
"""

from __future__ import annotations

from topics.engine.removal import begin_at
from topics.engine.replay import Replay
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.frame_bodies import decode_losses
from topics.formats.disk.frames import FrameHeader
from topics.formats.ranges import SeqRange, united


def replay(replay: Replay, header: FrameHeader, body: Buffer, _checkpointed: bool) -> None:
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
        _lose(topic, SeqRange(max(lost.first, topic.start_seq), lost.last))


def settle(replay: Replay, topic: Topic) -> bool:
    """After the last frame: let the topic go on above all seqs that it may have lost; whether it
    may.
    """
    doubt = replay.doubts.get(topic.id)
    if doubt is None or topic.head_seq > doubt.head_seq:
        return False
    _lose(topic, SeqRange(topic.head_seq + 1, topic.head_seq + doubt.seqs))
    return True


def _lose(topic: Topic, lost: SeqRange) -> None:
    """Twice does no harm."""
    topic.damaged = united(topic.damaged, (lost,))
    topic.head_seq = max(topic.head_seq, lost.last)
    topic.next_seq = topic.head_seq + 1
    begin_at(topic, topic.start_seq if topic.count else max(topic.start_seq, lost.last + 1))

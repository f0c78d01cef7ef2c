"""Offline reading: the records of a data directory that no server has, without one.

    directory.py   the topics of a directory, as a start would find them
    shard.py       the state of one shard: the steps of a start that only read
    pieces.py      which records live, and where: small, picklable pieces of a topic
    reader.py      from a piece to records

A directory is read when it is stopped, copied after a stop, or a snapshot of a file system. Nothing
in it is ever written (``decisions/0038``).
"""

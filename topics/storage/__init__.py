"""Files: the write-ahead log, segments, checkpoints, recovery. Knows nothing of HTTP and rings.

Order of syncs. A crash between any two leaves what the newest whole checkpoint describes, and files
that it does not name, which are removed at the start.

    seal, merge extents, flags, directory -> fdatasync -> rename -> sync folder -> install in
                memory; the next checkpoint, after all topics are installed, names the new segment,
                and not the log file or the segments that it replaces
    delete      DELETE frame -> fdatasync the log -> delete flags into the segment -> fdatasync it,
                at the next checkpoint
    checkpoint  pieces aside; log -> fdatasync up to an LSN; delete flags up to there -> fdatasync
                segments; header -> fdatasync -> rename -> sync folder
    free        log files below the older checkpoint's `replay_from`; segments named by neither
    restore     each file -> fsync, folders -> fsync, the directory renamed -> sync the one above
    next file   the full one -> fdatasync; header into a spare one -> fdatasync -> rename; its
                folder is not synced: after a power loss a spare file whose header begins above the
                oldest log file is a log file that lost its name
"""

"""Storage: a server's files. The package contains the write-ahead log, segments, checkpoints,
recovery, verification, repair, and restore. It must not depend on HTTP or on the rings between
processes.

Order of syncs. A crash between any two steps leaves all files that the newest intact checkpoint
refers to, and possibly other files, which the next startup removes.

    seal, merge extents, flags, directory -> fdatasync -> rename -> sync folder -> install in
                memory; the next checkpoint, after all topics are installed, refers to the new
                segment instead of the log file or the segments that it replaces
    delete      DELETE frame -> fdatasync the log -> delete flags into the segment -> fdatasync it,
                at the next checkpoint
    checkpoint  chunks into a temporary file; log -> fdatasync up to an LSN; delete flags up to this
                LSN -> fdatasync segments; header -> fdatasync -> rename -> sync folder
    free        log files below the older checkpoint's `replay_from`; segments that neither of the
                two checkpoints refers to
    restore     each file -> fsync, folders -> fsync, rename the directory -> sync its parent
    next file   the full file -> fdatasync; header into a spare file -> fdatasync -> rename; the
                folder is not synced: after a power loss, a spare file whose header has a base above
                the oldest log file is a log file that has lost its name
"""

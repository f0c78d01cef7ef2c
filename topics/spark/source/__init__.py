"""The Spark source ``format("topics")``: topics as batch and streaming DataFrames.

    data_source.py  the class that Spark looks for; it also names the sink
    connection.py   the options of servers, key and retries; the sink has the same
    options.py      the options of reads
    offsets.py      offsets as users and checkpoints write them
    columns.py      records to Arrow batches
    plan.py         which ranges of seqs are read; what a batch of a stream takes
    survey.py       what the servers hold now: topics, heads, epochs
    reading.py      an executor's part: reads the ranges of a task
    batch.py        reads of what is there
    stream.py       reads that go on
    lag.py          how far a query is behind

Offsets are inclusive at the start and exclusive at the end where users see them, as Kafka's are;
everywhere else a range is (after, last], as ``from_seq`` is (§3). Only offsets.py converts.
"""

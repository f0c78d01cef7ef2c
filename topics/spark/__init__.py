"""The Spark producer: rows of a DataFrame, or of Parquet, CSV and JSON files, into a topic.

    main.py       the command line
    preflight.py  the checks before a JVM starts: source, server, key, topic, Java
    reading.py    files to a DataFrame: every value as written, no broken line
    rows.py       rows to JSON records; a job id from rows
    producer.py   one job: create the topic, send the partitions, compare with the server's count
    task.py       an executor's part: appends the rows of one partition
    progress.py   the progress bar
    summary.py    the figures at the end

Only executors and the driver of a job load this; the server never does.
"""

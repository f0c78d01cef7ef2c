"""The Spark producer: rows of a DataFrame, or of Parquet, CSV and JSON files, into a topic.

    reading.py    files as a DataFrame: every value as the file says, no broken line
    producer.py   one job: make the topic, send the partitions, compare with the server's count
    rows.py       rows as JSON records, rows as a name for the job
    task.py       what an executor does with a partition
    progress.py   the bar
    summary.py    the figures at the end
    preflight.py  what is asked before a JVM starts: server, key, topic, Java
    main.py       the command line

Only executors and the driver of a job load this; the server never does.
"""

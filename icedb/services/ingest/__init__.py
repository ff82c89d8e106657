"""The ingest service: events over HTTP become rows of tables; a response of 2xx means that they are committed.

    icedb ingest --config ingest.toml

`config` defines tables and tenants, `events` decodes what clients send. Here are the limits, the writers
(`table_writers` has an `icedb.BufferedWriter` for each table), `intake`, which takes a request from its key to its
commit, `app`, the ASGI application, and `server`, the process. Begin with `intake`.
"""

"""The ingest service: events over HTTP become rows of tables, and a response of 2xx means that they are committed.

    icedb ingest --config ingest.toml

`config` defines tables and tenants. `events` decodes request bodies. `intake` takes a request from its key to its
commit, within the limits of `limits`. `table_writers` has an `icedb.BufferedWriter` for each table. `app` is the ASGI
application, and `server` is the process. Begin with `intake`.
"""

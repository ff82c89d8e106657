"""The ingest service: events over HTTP become rows of tables, and an answer of 2xx means that they are committed.

    icedb ingest --config ingest.toml

From the ground up: `settings` and `config` say which tables there are and who may write into them; `refusals` is how a
client is told no; `tenants` knows keys, `limits` how much each may send; `bodies` reads what was sent, `events`,
`arrow_events` and `segment` make rows of it, `columns` gives the rows what a table wants; `writers` has an
`icedb.BufferedWriter` for each table. `intake` takes a request from its key to its commit, `app` is the whole as one
ASGI application, and `server` runs it.
"""

from __future__ import annotations

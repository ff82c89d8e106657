"""The S3 proxy: a read-only S3 endpoint in front of tables, that shows each tenant its own live parts.

    icedb proxy --config proxy.toml

Whoever can read S3 and Parquet can query a consistent table with it, without knowing the log: a tenant's *virtual
bucket* lists the live parts of one table's snapshot, as `<partition path>/<id>.parquet`, and nothing else is there.
From the ground up: `tenants` and `s3_errors` say who may see what, and how a client is told no; `config` reads the
file, `directory` and `control_plane` find tenants; `signing` tells who asks; `catalog` knows what there is to see, and
`views` what that is at a moment; `buckets` and `objects` answer what `operations` chooses; `app` is the whole as one
ASGI application, and `server` runs it.
"""

from __future__ import annotations

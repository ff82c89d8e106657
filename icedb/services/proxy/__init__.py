"""The S3 proxy: a read-only S3 endpoint that shows each tenant the live parts (data files) of its tables.

    icedb proxy --config proxy.toml

A client that reads Parquet from S3 can query a consistent table without knowledge of the log. A tenant's *virtual
bucket* lists only the live parts of one snapshot, as `<partition path>/<id>.parquet`. `config` defines tenants, `s3`
the protocol, and `catalog` the tables behind the proxy. `signing` authenticates requests, `routing` selects the
operation, `bucket_operations` and `object_operations` respond. `iceberg_routes` is the Iceberg catalog of the same
tables, whose metadata `iceberg` computes. `app` is the ASGI application, and `server` is the process. Begin with `app`.
"""

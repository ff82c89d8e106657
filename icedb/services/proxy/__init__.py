"""The S3 proxy: a read-only S3 endpoint that shows each tenant the live parts of its tables.

    icedb proxy --config proxy.toml

A client that reads S3 and Parquet can query a consistent table, without knowing the log: a tenant's *virtual bucket*
lists the live parts of one snapshot as `<partition path>/<id>.parquet`, and nothing else. `config` defines tenants,
`s3` the protocol, `catalog` the tables behind the proxy. Here are the request handlers: `signing` authenticates,
`routing` chooses, `bucket_operations` and `object_operations` answer, `app` is the ASGI application, `server` the
process. Begin with `app`.
"""

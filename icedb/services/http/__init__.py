"""The HTTP server that the S3 proxy and the ingest service share: configuration, connections, logs, shutdown.

`server_settings`, `documents` and `config_file` depend only on the library, so a configuration can be checked on a
machine that has no server installed. `connections` and `server_process` are the server, `metrics` has the metrics of
all services, and `admin` serves them with the health checks. Begin with `server_process`.
"""

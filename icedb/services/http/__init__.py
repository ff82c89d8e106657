"""The HTTP server that the S3 proxy and the ingest service share: configuration, connections, logs, shutdown.

`server_settings`, `documents` and `config_file` need no more than the library, so a configuration can be checked where
no server is installed. `connections` and `server_process` are the server. Begin with `server_process`.
"""

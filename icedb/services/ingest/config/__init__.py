"""The ingest service's configuration: tables and tenants of `ingest.toml`.

May import `ingest.events` and `services.http`. Begin with `settings` and `config_file`.
"""

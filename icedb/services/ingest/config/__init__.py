"""The configuration of the ingest service: tables and tenants of `ingest.toml`.

May import `ingest.events` and `services.http`. Begin with `settings` and `config_file`.
"""

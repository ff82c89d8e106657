"""The configuration of the proxy, and its tenants from `proxy.toml` or from a control plane.

May import `proxy.s3` and `services.http`. Begin with `tenants` and `config_file`.
"""

"""The names of storage options: several names of one option, in any case."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["SECRET_OPTIONS", "known_options"]

#: The names of options whose values are secrets, in lower case.
SECRET_OPTIONS = frozenset(
    {"aws_secret_access_key", "secret_access_key", "aws_session_token", "session_token"}
    | {"azure_storage_account_key", "account_key", "azure_storage_sas_token", "azure_storage_sas_key", "sas_token"}
    | {"google_service_account_key", "service_account_key", "google_bearer_token", "bearer_token"}
)


def known_options(options: Mapping[str, str], names: dict[str, str]) -> dict[str, str]:
    """Return meaning -> value by lower-case option names. Of several names of a meaning, the first takes precedence."""
    lowered = {name.lower(): str(value) for name, value in options.items() if value}
    return {meaning: lowered[name] for name, meaning in reversed(names.items()) if name in lowered}

"""Storage options of a cloud: several names of one option, in any case, also from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from icedb.errors import InvalidOption

__all__ = ["SECRET_OPTIONS", "check_endpoint", "cloud_options", "known_options", "set_options"]

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


def cloud_options(
    options: Mapping[str, str], names: dict[str, str], *, cloud: str, prefix: str, text: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of a cloud by meaning, as `known_options` does, and those of the environment.

    `prefix` is how the names of variables begin. Raises InvalidOption, which quotes no value, for unknown options of
    the address `text`.
    """
    if unknown := sorted(name for name in options if name.lower() not in names):
        supported = sorted(name.upper() for name in names if name.upper().startswith(prefix))
        raise InvalidOption(f"{text}: unknown storage options {unknown}. Known for {cloud}: {supported}.")
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefix)}
    return known_options(options, names), known_options(environment, names)


def check_endpoint(endpoint: str, option: str, *, text: str) -> None:
    """Raise InvalidOption if the endpoint of a store is not a plain address."""
    if not endpoint.startswith(("http://", "https://")) or set("@?") & set(endpoint):
        raise InvalidOption(f"{text}: {option} must start with http:// or https:// and contain no credentials.")


def set_options(options: Mapping[str, str | None]) -> dict[str, str]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value}

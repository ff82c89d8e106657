"""Access to Google Cloud Storage: a service account, a token, or the credentials of the machine.

Options have the same names as in deltalake, Polars and obstore:

    GOOGLE_SERVICE_ACCOUNT         the path of a service account's key, a JSON file, or
    GOOGLE_SERVICE_ACCOUNT_KEY     the content of that file, or
    GOOGLE_APPLICATION_CREDENTIALS the path of application default credentials, also those of a user, or
    GOOGLE_BEARER_TOKEN            an access token, which expires after an hour
    GOOGLE_BASE_URL                for an emulator; else https://storage.googleapis.com

Without any, obstore uses the application default credentials of `gcloud`, else the service account of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icedb.errors import InvalidOption
from icedb.storage.option_names import check_endpoint, cloud_options, set_options

__all__ = ["GoogleAccess", "google_access"]

# Of several names of one option, the first takes precedence.
_OPTIONS = {
    "google_service_account": "service_account",
    "google_service_account_path": "service_account",
    "service_account": "service_account",
    "google_service_account_key": "service_account_key",
    "service_account_key": "service_account_key",
    "google_application_credentials": "application_credentials",
    "application_credentials": "application_credentials",
    "google_bearer_token": "bearer_token",
    "bearer_token": "bearer_token",
    "google_base_url": "base_url",
    "base_url": "base_url",
}
# obstore reads the environment by itself. Of several credentials it uses those of the lowest rank.
_RANKS = {"bearer_token": 0, "service_account": 1, "service_account_key": 1, "application_credentials": 2}


@dataclass(frozen=True, slots=True)
class GoogleAccess:
    """Endpoint and credentials. At most one of the credentials is set. The repr shows no secret."""

    endpoint: str | None = None
    service_account: str | None = None
    service_account_key: str | None = field(default=None, repr=False)
    application_credentials: str | None = None
    bearer_token: str | None = field(default=None, repr=False)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options that `google_access` parses to this value. Contains secrets."""
        return set_options(
            {
                "GOOGLE_BASE_URL": self.endpoint,
                "GOOGLE_SERVICE_ACCOUNT": self.service_account,
                "GOOGLE_SERVICE_ACCOUNT_KEY": self.service_account_key,
                "GOOGLE_APPLICATION_CREDENTIALS": self.application_credentials,
                "GOOGLE_BEARER_TOKEN": self.bearer_token,
            }
        )


def google_access(storage_options: Mapping[str, str], *, text: str) -> GoogleAccess:
    """Parse storage options for the bucket with the address `text`. The environment supplies missing options.

    Raises InvalidOption, which quotes no value.
    """
    explicit, environment = cloud_options(storage_options, _OPTIONS, cloud="Google Cloud", prefix="GOOGLE_", text=text)
    endpoint = (explicit.pop("base_url", "") or environment.pop("base_url", "")).rstrip("/")
    environment.pop("base_url", None)
    if endpoint:
        check_endpoint(endpoint, "GOOGLE_BASE_URL", text=text)
    if len(explicit) > 1:
        raise InvalidOption(f"{text}: give only one of {_names(explicit)}.")
    for kind in explicit:
        if stronger := [k for k in environment if k != kind and _RANKS[k] <= _RANKS[kind]]:
            raise InvalidOption(
                f"{text}: {_names(stronger)} in the environment would take precedence over the storage option "
                f"{_names([kind])}. Unset it."
            )
    credentials = explicit or environment
    chosen = {kind: credentials[kind] for kind in sorted(credentials, key=_RANKS.__getitem__)[:1]}
    return GoogleAccess(endpoint or None, **chosen)


def _names(kinds: Mapping[str, str] | list[str]) -> str:
    return " and ".join(f"GOOGLE_{kind.upper()}" for kind in sorted(kinds))

"""Access to Azure Blob Storage: the account, and its key or a shared access signature.

Options have the same names as in deltalake and Polars:

    AZURE_STORAGE_ACCOUNT_NAME   the account
    AZURE_STORAGE_ACCOUNT_KEY    its key, or
    AZURE_STORAGE_SAS_TOKEN      a shared access signature, with the rights to read, add, create, write, delete and list
    AZURE_STORAGE_ENDPOINT       for an emulator or another cloud; else https://<account>.blob.core.windows.net

Other kinds of authentication, such as Entra ID and managed identities, are not supported.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from icedb.errors import InvalidOption
from icedb.storage.option_names import check_endpoint, cloud_options, set_options

__all__ = ["AzureAccess", "azure_access"]

# Of several names of one option, the first takes precedence.
_OPTIONS = {
    "azure_storage_account_name": "account",
    "account_name": "account",
    "azure_storage_account_key": "key",
    "account_key": "key",
    "azure_storage_sas_token": "sas_token",
    "azure_storage_sas_key": "sas_token",
    "sas_token": "sas_token",
    "azure_storage_endpoint": "endpoint",
    "azure_endpoint": "endpoint",
    "endpoint": "endpoint",
}
_SECRETS = ("key", "sas_token")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """Account, endpoint and credentials. Exactly one of `key` and `sas_token` is set. The repr shows no secret."""

    account: str
    endpoint: str
    key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)

    @property
    def storage_options(self) -> dict[str, str]:
        """The options that `azure_access` parses to this value. Contains secrets."""
        return set_options(
            {
                "AZURE_STORAGE_ACCOUNT_NAME": self.account,
                "AZURE_STORAGE_ENDPOINT": self.endpoint,
                "AZURE_STORAGE_ACCOUNT_KEY": self.key,
                "AZURE_STORAGE_SAS_TOKEN": self.sas_token,
            }
        )


def azure_access(storage_options: Mapping[str, str], *, text: str) -> AzureAccess:
    """Parse storage options for the container with the address `text`. The environment supplies missing options.

    Raises InvalidOption, which quotes no value.
    """
    explicit, options = cloud_options(storage_options, _OPTIONS, cloud="Azure", prefix="AZURE_", text=text)
    if explicit.keys() & _SECRETS:  # key and signature never come from two different sources
        options = {name: value for name, value in options.items() if name not in _SECRETS}
    options |= explicit
    account, key, sas_token = options.get("account", ""), options.get("key"), options.get("sas_token")
    if not _ACCOUNT.fullmatch(account):
        raise InvalidOption(
            f"{text}: AZURE_STORAGE_ACCOUNT_NAME is missing or invalid. Give the account's name, which has 3 to 24 "
            "lower case letters and digits."
        )
    if bool(key) == bool(sas_token):
        raise InvalidOption(
            f"{text}: give either AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, not both. Entra ID and "
            "managed identities are not supported yet."
        )
    if key and not _is_base64(key):
        raise InvalidOption(f"{text}: AZURE_STORAGE_ACCOUNT_KEY is not an account key, which must be base64.")
    endpoint = options.get("endpoint", f"https://{account}.blob.core.windows.net").rstrip("/")
    check_endpoint(endpoint, "AZURE_STORAGE_ENDPOINT", text=text)
    return AzureAccess(account, endpoint, key, sas_token)


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False

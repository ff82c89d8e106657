"""Validation of the fields of resources: an invalid value raises an IceDB error that does not show the value."""

from typing import Any

from pydantic import ValidationError

from icedb.errors import InvalidArgument

__all__ = ["CheckedFields"]

_FIELDS_MAX = 5


class CheckedFields:
    """A base class of resources and IO managers, listed before Dagster's own.

    Pydantic's error text shows the value of an invalid field, which may be a secret in `storage_options`.
    """

    def __init__(self, **fields: Any) -> None:
        """Set the fields. Raises InvalidArgument, which names the fields with values of another type."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)
            texts = [f"{'.'.join(map(str, e['loc'])) or 'the fields'}: {e['msg']}" for e in wrong]
            more = f"; and {len(texts) - _FIELDS_MAX} more" if len(texts) > _FIELDS_MAX else ""
            raise InvalidArgument(f"{type(self).__name__}: {'; '.join(texts[:_FIELDS_MAX])}{more}.") from None
        except TypeError as error:  # a dict instead of a resource, with keys that are not names
            raise InvalidArgument(f"{type(self).__name__}: a field has a value of the wrong type ({error}).") from None

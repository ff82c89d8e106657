"""The fields of resources: a value that does not fit is an error of IceDB's tree, which never shows the value."""

from typing import Any

from pydantic import ValidationError

from icedb.errors import InvalidArgument

__all__ = ["CheckedFields"]

_FIELDS_MAX = 5


class CheckedFields:
    """A base, before Dagster's own, of resources and IO managers.

    Pydantic's text shows the value of a field that does not fit, which may be a secret in `storage_options`.
    """

    def __init__(self, **fields: Any) -> None:
        """Raise InvalidArgument, which names the fields, for values of another type."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            wrong = error.errors(include_input=False, include_url=False, include_context=False)
            texts = [f"{'.'.join(map(str, e['loc'])) or 'the fields'}: {e['msg']}" for e in wrong]
            more = f"; and {len(texts) - _FIELDS_MAX} more" if len(texts) > _FIELDS_MAX else ""
            raise InvalidArgument(f"{type(self).__name__}: {'; '.join(texts[:_FIELDS_MAX])}{more}.") from None
        except TypeError as error:  # a dict in the place of a resource, whose keys are no names
            raise InvalidArgument(f"{type(self).__name__}: a field has a value of another type ({error}).") from None

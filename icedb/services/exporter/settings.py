"""Settings of the exporter, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from icedb.errors import InvalidOption
from icedb.format.timing import DAY_MS
from icedb.services.http.config_file import host_and_port
from icedb.services.http.server_settings import ListenSettings
from icedb.util.durations import duration_text

__all__ = ["INTERVAL_MS", "LISTEN", "LISTING_INTERVAL_MS", "ExporterSettings", "exporter_settings"]

LISTEN = "127.0.0.1:9464"

#: A quiet table then costs 22,000 LIST requests a month.
INTERVAL_MS = 120_000
#: A listing of the parts of a table is one LIST request for each thousand objects.
LISTING_INTERVAL_MS = DAY_MS
_INTERVAL_MS_MIN = 1_000


@dataclass(frozen=True, slots=True)
class ExporterSettings(ListenSettings):
    """The root of the tables, and how often they are read."""

    root: str = "."
    #: Time between the starts of two rounds over all tables.
    interval_ms: int = INTERVAL_MS
    #: Time between two listings of the parts of a table, which find orphans. None: never.
    listing_interval_ms: int | None = LISTING_INTERVAL_MS

    def __post_init__(self) -> None:
        for name in ("interval_ms", "listing_interval_ms"):
            value = getattr(self, name)
            if value is not None and value < _INTERVAL_MS_MIN:
                raise InvalidOption(
                    f"{name.removesuffix('_ms')} is {value} ms. Give {duration_text(_INTERVAL_MS_MIN)} or more."
                )


def exporter_settings(
    root: str, *, listen: str = LISTEN, interval_ms: int | None = None, listing_interval_ms: int | None = None
) -> ExporterSettings:
    """Return the settings for the arguments of a command. A listing interval of 0 means never.

    Raises InvalidOption, also for a folder that does not exist.
    """
    host, port = host_and_port(listen, "--listen")
    if "://" not in root and not Path(root).expanduser().is_dir():
        raise InvalidOption(f"{root}: there is no such folder. Correct the path.")
    listings_ms = LISTING_INTERVAL_MS if listing_interval_ms is None else listing_interval_ms or None
    return ExporterSettings(
        host=host,
        port=port,
        root=root,
        interval_ms=INTERVAL_MS if interval_ms is None else interval_ms,
        listing_interval_ms=listings_ms,
    )

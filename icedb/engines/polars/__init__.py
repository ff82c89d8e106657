"""A snapshot as a Polars LazyFrame: `scan`."""

from icedb.engines.polars.lazy_frames import scan

__all__ = ["scan"]

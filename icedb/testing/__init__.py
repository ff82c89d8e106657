"""Test utilities for programs that use IceDB: a manual clock, a store with fault injection, and consistency checks.

They are part of the library and used by its own tests. The stores pass the same conformance tests as the real ones.
"""

from icedb.testing.clock import ManualClock, SkewedClock
from icedb.testing.faults import Crash, Fault, FaultyStore, Kind, Request
from icedb.testing.memory import ClockedStore
from icedb.testing.tables import check_sound, create_table, live_to_v3_readers, open_table

__all__ = ["ClockedStore", "Crash", "Fault", "FaultyStore", "Kind", "ManualClock", "Request", "SkewedClock",
           "check_sound", "create_table", "live_to_v3_readers", "open_table"]  # fmt: skip

"""What tests of programs on IceDB need: a clock to set, a store that fails on purpose, checks that must hold.

Shipped with the library, and used by its own tests. The stores pass the same conformance suite as the real ones.
"""

from icedb.testing.clock import ManualClock, SkewedClock
from icedb.testing.faults import Crash, Fault, FaultyStore, Kind, Request
from icedb.testing.memory import ClockedStore
from icedb.testing.tables import check_sound, create_table, live_to_v3_readers, open_table

__all__ = [
    "ClockedStore",
    "Crash",
    "Fault",
    "FaultyStore",
    "Kind",
    "ManualClock",
    "Request",
    "SkewedClock",
    "check_sound",
    "create_table",
    "live_to_v3_readers",
    "open_table",
]

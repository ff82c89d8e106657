"""The import path of IceDB v3's API; the code is in `icedb.v3.icedb_v3`."""

from icedb.v3.icedb_v3 import CompressionCodec, IceDBv3

__all__ = ["CompressionCodec", "IceDBv3"]

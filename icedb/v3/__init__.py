"""The API of IceDB v3 over this library. Programs import it as `icedb.icedb` and `icedb.log`. Begin with `icedb_v3`."""

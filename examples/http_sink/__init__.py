"""Events from a program to `icedb ingest`, which may be away for a while."""

"""Send events from a program to `icedb ingest`, which may be down for a while."""

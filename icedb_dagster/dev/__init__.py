"""Local development: the command `icedb-dagster`, the local stack, the doctor, and new projects."""

"""The command `icedb-dagster`: the local stack, new projects, and the doctor. Begin with `command`."""

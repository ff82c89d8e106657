"""Output of the command `icedb`: tables, JSON, charts, progress bars and error messages. Begin with `output`."""

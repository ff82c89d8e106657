"""Figures of a Dagster instance for the exporter: maintenance runs, table locks, sensors, the daemon, the doctor.

`run_figures` counts runs, `instance_figures` reads the state of the instance, and `source` reads both again and again
and runs the doctor. A scrape makes no query. Begin with `source`.
"""

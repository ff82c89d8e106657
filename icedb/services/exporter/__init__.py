"""The exporter: one process that reads all tables below a root, and publishes their figures for Prometheus.

    table_watch   one table: its figures, read from its log
    table_set     all tables below a root: finds them and refreshes them in turn
    metrics       the figures as metrics, without access to a store
    server        the process

A refresh of a table that has not changed is one LIST request. A scrape makes no request. Begin with `table_set`.
"""

"""Shared parts of the benchmarks: rounds, findings, the page of results, S3 servers with a delay.

May import `icedb`. Begin with `figures` and `rounds`.
"""

"""Servers: the S3 proxy and the ingest service, over one shared HTTP server."""

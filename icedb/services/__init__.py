"""Servers: the S3 proxy and the ingest service, over the HTTP server that both share."""

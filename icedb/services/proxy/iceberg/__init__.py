"""The Iceberg catalog of the proxy: metadata of each bucket, computed from the log, and the REST protocol without HTTP.

    visible_states     what a bucket shows at each time, as sums over the markers of its parts
    visible_columns    the columns of a bucket, without those that only other tenants' parts have
    documents          the metadata document, which lists the snapshots
    bucket_manifests   the manifests and the manifest list of one snapshot
    names              the names of these objects, from which any proxy computes them again
    metadata_catalog   all of these for requests, with caches
    tokens, rest       bearer tokens, JSON responses and errors of the REST protocol

May import `proxy.catalog` and folders below. Begin with `metadata_catalog`.
"""

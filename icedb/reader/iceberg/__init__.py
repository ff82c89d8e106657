"""Iceberg metadata of a snapshot: pure functions that return the bytes of its objects.

    schema          columns with field ids, the name mapping for parts without ids, the partition spec
    manifests       Avro files that list the parts (data files) with their partition values and bounds
    manifest list   an Avro file that lists the manifests of one snapshot
    metadata        a JSON document with the snapshots, schemas and partition specs of a table

The same snapshot has the same bytes wherever they are computed. May import `reader` and folders below. Begin with
`snapshot_metadata`.
"""

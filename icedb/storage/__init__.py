"""Object stores: addresses, credentials, and the requests that a table needs.

`object_store` defines the requests, `obstore_store` does them on S3, Azure and memory, `local_store` in a folder, and
`split_store` keeps a table's log and its parts in two stores. May import `icedb.format`. Begin with `object_store`.
"""

"""Object stores: addresses, credentials, and the requests that a table makes.

`object_store` defines the requests. `obstore_store` makes them on S3, Azure and memory, and `local_store` in a folder.
`split_store` keeps a table's log and its parts in two stores. May import `icedb.format`. Begin with `object_store`.
"""

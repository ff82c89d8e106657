"""Object stores: addresses, credentials, the requests that a table makes, and the paths of its parts.

`object_store` defines the requests. `obstore_store` makes them on S3, Azure, Google Cloud and memory, and `local_store`
in a folder. `split_store` keeps a table's log and its parts in two stores. `parts` has the paths by which engines open
parts (data files). May import `icedb.format`. Begin with `object_store`.
"""

"""The tables behind the proxy, and the views of them that buckets show.

May import `proxy.config` and `proxy.s3`. Begin with `bucket_view`.
"""

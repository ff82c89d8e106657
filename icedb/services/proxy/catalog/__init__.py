"""The tables behind the proxy, and the view of each that a bucket shows at one moment.

May import `proxy.config` and `proxy.s3`. Begin with `bucket_view`.
"""

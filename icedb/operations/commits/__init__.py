"""Plans of exclusive commits, and the operations that need nothing else: publish, drop, alter.

Begin with `actions`. A plan is made again at each attempt of `icedb.transaction.exclusive`.
"""

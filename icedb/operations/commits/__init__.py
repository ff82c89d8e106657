"""Exclusive commits as plans, and the verbs that need nothing else: publish, drop, alter.

Begin with `actions`: a plan is made again at each attempt of `icedb.transaction.exclusive`.
"""

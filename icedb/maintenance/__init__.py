"""What keeps a table small and fast: merge, drop, cleanup.

Each is planned by a pure function and done by a dull one. All but the deletions of cleanup are exclusive
commits: safe at any moment, and twice at once. The table's lock only keeps two workers from doing the same work.
"""

"""Bodies of requests become rows: JSON, JSON lines, Arrow and Segment's calls, or a rejection with its reason.

Begin with `event_decoder`.
"""

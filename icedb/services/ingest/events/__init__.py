"""Decoding of request bodies to rows: JSON, JSON lines, Arrow, and calls of Segment.

Begin with `event_decoder`.
"""

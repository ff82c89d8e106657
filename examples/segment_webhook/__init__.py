"""Segment's calls, from its libraries and from its webhooks, and a funnel over them."""

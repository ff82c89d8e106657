"""Segment calls from libraries and webhooks, and a funnel over them."""

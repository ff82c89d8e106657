"""A frequent query, answered by a view that every insert updates."""

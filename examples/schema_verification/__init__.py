"""Ways to handle a batch that does not fit its table."""

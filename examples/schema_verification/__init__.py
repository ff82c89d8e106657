"""What becomes of a batch that does not fit its table."""

"""Merges that make one row of many: ready-made, and by a query of your own."""

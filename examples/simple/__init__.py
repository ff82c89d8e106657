"""Events into a table, and questions to it."""

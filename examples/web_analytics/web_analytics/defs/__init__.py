"""Assets, jobs and resources, one module each; the tables and their maintenance in `tables`."""

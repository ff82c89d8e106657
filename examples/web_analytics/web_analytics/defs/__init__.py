"""Assets, jobs and resources, a module each; the tables, with all that keeps them in good order, in `tables`."""

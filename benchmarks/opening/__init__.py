"""The measurements of opening, refreshing and querying a table. Begin with `opening_costs`."""

"""Measurements of speed, beside other programs that do the same work in the same run. Begin with `suite`."""

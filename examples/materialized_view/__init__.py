"""A question that is asked often, answered by a view that every insert keeps up to date."""

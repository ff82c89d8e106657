"""Whole projects on IceDB."""

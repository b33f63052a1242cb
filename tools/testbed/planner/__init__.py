"""Compares a profile's choices with all alternatives (``python -m testbed.planner``)."""

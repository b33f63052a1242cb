"""Emulates several hosts with slow links on one machine (``python -m testbed``)."""

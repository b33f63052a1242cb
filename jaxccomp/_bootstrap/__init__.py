"""Joins and leaves the other processes, and keeps this process's state about them."""

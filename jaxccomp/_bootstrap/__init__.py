"""Joining and leaving the other processes, and this process's state about them."""

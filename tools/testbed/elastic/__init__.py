"""Tests elastic groups on hosts that fail (``python -m testbed.elastic``)."""

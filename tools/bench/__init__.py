"""This package beside its peers on one machine (``python -m bench``), and its thresholds."""

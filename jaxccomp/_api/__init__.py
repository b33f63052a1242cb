"""The public operations: argument checks, defaults, pytrees, documentation."""

"""Compares jaxccomp with other packages on one machine (``python -m bench``)."""

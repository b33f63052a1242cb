"""Measurements of operations, codecs and links (``python -m jaxccomp bench`` and ``tune``)."""

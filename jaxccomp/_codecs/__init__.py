"""Codec specs, the table of codecs, and frames. See :mod:`jaxccomp.codecs`."""

"""The command line: ``python -m jaxccomp doctor``, ``bench``, ``run`` and others."""

"""The command line: ``python -m jaxccomp info``, ``bench``, ``run`` and others."""

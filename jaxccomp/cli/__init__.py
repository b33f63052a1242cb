"""The command line: ``python -m jaxccomp info`` and ``bench``."""

"""A third-party package for jaxccomp: its entry points name these modules."""

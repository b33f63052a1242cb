"""What another package may add to jaxccomp: its entry points name these modules."""

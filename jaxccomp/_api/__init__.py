"""What users call, made of operands, options and pytrees: checks, defaults, documentation."""

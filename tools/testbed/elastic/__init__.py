"""Groups that shrink and grow, on hosts that fail."""

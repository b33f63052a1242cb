"""What prices are computed from: described clusters."""

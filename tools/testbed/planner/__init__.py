"""What a profile chooses, beside all that it chooses from."""

"""Training over slow links: what a step takes with each way to reduce gradients."""

"""Times training steps over slow links with each way to reduce gradients."""

"""Where messages are kept: the seam, and the engines behind it."""

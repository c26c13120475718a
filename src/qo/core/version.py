"""What this is called."""

__version__ = "0.1.0"

"""What was to be expected of a real engine's run: the same run on the embedded engine."""

"""What the instrument itself is off by on this machine."""

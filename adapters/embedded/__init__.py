"""The embedded engine: scheduling for real, step times from a roofline. Always simulated."""

"""Where a stored run loses its time: one file for each family of bottlenecks."""

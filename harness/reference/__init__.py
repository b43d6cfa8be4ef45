"""A server of known token times, to measure clients against."""

"""One request in, one record out: over HTTP, on virtual time, or scripted."""

"""What will happen, decided before anything starts: runs, their order, their keys. Pure."""

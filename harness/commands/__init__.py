"""What each command does: a file for each, and the table of them."""

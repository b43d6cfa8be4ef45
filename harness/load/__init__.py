"""Offering a load: what is asked and when, kept to the schedule, by one process or several."""

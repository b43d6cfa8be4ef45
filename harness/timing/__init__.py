"""Clocks, timers of the kernel, and how late a loop is."""

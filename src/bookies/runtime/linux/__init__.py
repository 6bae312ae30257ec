"""Input and output that Linux carries out without a thread of this process."""

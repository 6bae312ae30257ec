"""Ports to the outside world (clock, network, disk, random numbers, workers), and their implementation on asyncio."""

"""Decisions of the protocol as pure code: no IO, no clock, no random source of its own."""

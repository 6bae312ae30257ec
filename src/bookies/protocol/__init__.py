"""Pure decisions: no IO, no clock, no random source of their own."""

"""Connections of clients: frames in and out, encryption, users, and limits of what they may hold in memory."""

from __future__ import annotations

from bookies.bookie.transport.connection import Connection
from bookies.bookie.transport.pressure import Intake, ReadBudget
from bookies.bookie.transport.secure_connection import SecureConnection

__all__ = ["Connection", "Intake", "ReadBudget", "SecureConnection"]

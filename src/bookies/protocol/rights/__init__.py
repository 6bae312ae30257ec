"""Users: who they are, what they may do with which ledgers and logs, and how much of it."""

from __future__ import annotations

from bookies.protocol.rights.allowance import Allowance
from bookies.protocol.rights.users import ROLES, Role, User, Users, parse_users

__all__ = ["ROLES", "Allowance", "Role", "User", "Users", "parse_users"]

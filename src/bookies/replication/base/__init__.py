"""What auditor and workers share: members of the cluster, the switch, records."""

from __future__ import annotations

from bookies.replication.base.membership import Membership

__all__ = ["Membership"]

"""Mechanisms of SASL, both sides, and how a bookie recognizes them."""

from __future__ import annotations

from bookies.wire.sasl.mechanisms import (
    DIGEST_MD5,
    MECHANISMS,
    PLAIN,
    SaslExchange,
    Secrets,
    sasl_client,
)

__all__ = ["DIGEST_MD5", "MECHANISMS", "PLAIN", "SaslExchange", "Secrets", "sasl_client"]

"""Conversion of Apache's keys of ensemble placement. Source: metadata 9, 12.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookies.apache.properties import items_of
from bookies.apache.table import Level, Notice, number, switch, value_of
from bookies.errors import ConfigError

_POLICIES = {
    "Default": "random",
    "Rackaware": "rack",
    "RackawareEnsemblePlacementPolicyImpl": "rack",
    "RegionAware": "region",
    "Zoneaware": "zone",
    "ZoneawareEnsemblePlacementPolicyImpl": "zone",
}
_SCRIPT = "ScriptBasedMapping"
_BY_HAND = "list the locations in locations_file, or let bookies publish their `location`"


def client_placement(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Convert the settings of placement, which depend on several keys. Raises `ConfigError`.

    Without a policy in the file, racks are used if any are named: Apache's default is its rack-aware policy.
    """
    policy = _policy(properties, notices)
    if policy is not None:
        settings["placement"] = policy
    script = properties.get("networkTopologyScriptFileName", "").strip()
    resolver = properties.get("reppDnsResolverClass", "").rpartition(".")[2]
    if resolver not in ("", _SCRIPT):
        text = f"Java classes cannot be loaded here: {_BY_HAND}"
        notices.append(Notice(Level.DANGER, f"reppDnsResolverClass={resolver}", text))
    elif script:
        settings["locations_script"] = script
    is_rule = bool(value_of(properties, "enforceMinNumRacksPerWriteQuorum", switch))
    if policy == "zone":
        is_rule = value_of(properties, "enforceStrictZoneawarePlacement", switch) is not False
    if is_rule and policy != "random":
        settings["placement_rule"] = True
    least = value_of(
        properties, "minNumZonesPerWriteQuorum" if policy == "zone" else "minNumRacksPerWriteQuorum", number
    )
    if value_of(properties, "enforceMinNumFaultDomainsForWrite", switch) and policy not in ("random", "region"):
        settings["fault_domains_min"] = 2 if least is None else least
    _regions(properties, policy, settings, notices)


def _policy(properties: Mapping[str, str], notices: list[Notice]) -> str | None:
    name = properties.get("ensemblePlacementPolicy", "").strip().rpartition(".")[2]
    if not name:
        return None
    policy = _POLICIES.get(name) or _POLICIES.get(name.removesuffix("EnsemblePlacementPolicy"))
    if policy is None:
        text = "Java classes cannot be loaded here: racks are used if any are named; or set placement"
        notices.append(Notice(Level.DANGER, f"ensemblePlacementPolicy={name}", text))
    return policy


def _regions(
    properties: Mapping[str, str], policy: str | None, settings: dict[str, Any], notices: list[Notice]
) -> None:
    """Convert durability over regions. As with Apache, it needs a list of regions."""
    regions = items_of(properties.get("reppRegionsToWrite", "").replace(";", ","))
    if not regions or policy != "region":
        return
    least = value_of(properties, "reppMinimumRegionsForDurability", number)
    least = 2 if least is None else least
    if least > len(regions):
        raise ConfigError(f"reppMinimumRegionsForDurability={least}: reppRegionsToWrite names only {len(regions)}")
    settings["regions_min"] = max(0, least)
    text = "any region with bookies may be written to; an ack quorum of each entry spans the required number of regions"
    notices.append(Notice(Level.DIFFERENT, "reppRegionsToWrite", text))

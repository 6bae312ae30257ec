"""Apache's keys of ensemble placement as ours. Source: metadata 9, 12.3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookies.apache.properties import items_of
from bookies.apache.table import Level, Notice, number, switch, value_of
from bookies.errors import ConfigError

_KINDS = {
    "Default": "random",
    "Rackaware": "rack",
    "RackawareEnsemblePlacementPolicyImpl": "rack",
    "RegionAware": "region",
    "Zoneaware": "zone",
    "ZoneawareEnsemblePlacementPolicyImpl": "zone",
}
_SCRIPT = "ScriptBasedMapping"
_BY_HAND = "name the locations in locations_file, or have bookies publish their `location`"


def client_placement(properties: Mapping[str, str], settings: dict[str, Any], notices: list[Notice]) -> None:
    """Settings of placement, which follow from several keys together. Raises `ConfigError`.

    Without a policy in the file racks are used if anybody names any: Apache's default is its rack-aware policy.
    """
    kind = _kind(properties, notices)
    if kind is not None:
        settings["placement"] = kind
    script = properties.get("networkTopologyScriptFileName", "").strip()
    resolver = properties.get("reppDnsResolverClass", "").rpartition(".")[2]
    if resolver not in ("", _SCRIPT):
        text = f"Java classes cannot be loaded here: {_BY_HAND}"
        notices.append(Notice(Level.DANGER, f"reppDnsResolverClass={resolver}", text))
    elif script:
        settings["locations_script"] = script
    is_rule = bool(value_of(properties, "enforceMinNumRacksPerWriteQuorum", switch))
    if kind == "zone":
        is_rule = value_of(properties, "enforceStrictZoneawarePlacement", switch) is not False
    if is_rule and kind != "random":
        settings["placement_rule"] = True
    least = value_of(properties, "minNumZonesPerWriteQuorum" if kind == "zone" else "minNumRacksPerWriteQuorum", number)
    if value_of(properties, "enforceMinNumFaultDomainsForWrite", switch) and kind not in ("random", "region"):
        settings["fault_domains_min"] = 2 if least is None else least
    _regions(properties, kind, settings, notices)


def _kind(properties: Mapping[str, str], notices: list[Notice]) -> str | None:
    name = properties.get("ensemblePlacementPolicy", "").strip().rpartition(".")[2]
    if not name:
        return None
    kind = _KINDS.get(name) or _KINDS.get(name.removesuffix("EnsemblePlacementPolicy"))
    if kind is None:
        text = "Java classes cannot be loaded here: racks are used, if anybody names any; or set placement"
        notices.append(Notice(Level.DANGER, f"ensemblePlacementPolicy={name}", text))
    return kind


def _regions(properties: Mapping[str, str], kind: str | None, settings: dict[str, Any], notices: list[Notice]) -> None:
    """Durability over regions: with a list of regions only, as Apache's."""
    regions = items_of(properties.get("reppRegionsToWrite", "").replace(";", ","))
    if not regions or kind != "region":
        return
    least = value_of(properties, "reppMinimumRegionsForDurability", number)
    least = 2 if least is None else least
    if least > len(regions):
        raise ConfigError(f"reppMinimumRegionsForDurability={least}: reppRegionsToWrite names only {len(regions)}")
    settings["regions_min"] = max(0, least)
    text = "any region that has bookies is written to; an ack quorum of each entry is in so many regions as asked for"
    notices.append(Notice(Level.DIFFERENT, "reppRegionsToWrite", text))

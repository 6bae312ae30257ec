"""Every key of Apache's client configuration: what it becomes, or what is said about it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from bookies.apache import ClientOptions, Level, client_options
from bookies.apache.client_keys import CLIENT
from bookies.apache.table import Different, Mapped, index
from bookies.config import ClientConfig
from bookies.errors import ConfigError

GOLDEN = pathlib.Path(__file__).parent.parent.parent / "golden" / "apache-keys"

TLS = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory"}
SHOWN = {
    "tlsClientAuthentication": "true",
    "tlsCertificatePath": "/c",
    "clientKeyStore": "/k",
    "clientKeyStoreType": "PEM",
    "clientKeyStorePasswordPath": "/p",
}
POLICY = "org.apache.bookkeeper.client.{}EnsemblePlacementPolicy"
MAPPED: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {
    "addEntryTimeoutSec": [({"addEntryTimeoutSec": "7"}, {"add_timeout_ms": 7000})],
    "readEntryTimeoutSec": [({"readEntryTimeoutSec": "7"}, {"read_timeout_ms": 7000})],
    "readTimeout": [
        ({"readTimeout": "9"}, {"read_timeout_ms": 9000}),
        ({"readTimeout": "9", "readEntryTimeoutSec": "7"}, {"read_timeout_ms": 7000}),
    ],
    "addEntryQuorumTimeoutSec": [
        ({"addEntryQuorumTimeoutSec": "60"}, {"add_quorum_timeout_ms": 60_000}),
        ({"addEntryQuorumTimeoutSec": "-1"}, {"add_quorum_timeout_ms": 0}),
    ],
    "reorderReadSequenceEnabled": [({"reorderReadSequenceEnabled": "false"}, {"near_reads": False})],
    "clientConnectTimeoutMillis": [({"clientConnectTimeoutMillis": "1500"}, {"connect_timeout_ms": 1500})],
    "nettyMaxFrameSizeBytes": [({"nettyMaxFrameSizeBytes": "6000000"}, {"frame_size_max": 6_000_000})],
    "useV2WireProtocol": [
        ({"useV2WireProtocol": "true"}, {"wire": "v2"}),
        ({"useV2WireProtocol": "false"}, {"wire": "v3"}),
    ],
    "firstSpeculativeReadTimeout": [
        ({"firstSpeculativeReadTimeout": "100"}, {"hedge_delay_max_ms": 100}),
        ({"firstSpeculativeReadTimeout": "0"}, {"hedged_reads": False}),
    ],
    "speculativeReadTimeout": [
        ({"speculativeReadTimeout": "300"}, {"hedge_delay_max_ms": 300}),
        ({"speculativeReadTimeout": "300", "firstSpeculativeReadTimeout": "100"}, {"hedge_delay_max_ms": 100}),
    ],
    "stickyReadSEnabled": [({"stickyReadSEnabled": "true"}, {"sticky_reads": True})],
    "enableDigestTypeAutodetection": [({"enableDigestTypeAutodetection": "false"}, {"digest_autodetection": False})],
    "explicitLacInterval": [({"explicitLacInterval": "500"}, {"explicit_lac_interval_ms": 500})],
    "maxNumEnsembleChanges": [({"maxNumEnsembleChanges": "3"}, {"ensemble_changes_max": 3})],
    "delayEnsembleChange": [({"delayEnsembleChange": "true"}, {"delay_ensemble_change": True})],
    "tlsProviderFactoryClass": [(TLS, {"tls": True}), ({"tlsProviderFactoryClass": "", "clientKeyStore": "/k"}, {})],
    "clientTrustStore": [
        (TLS | {"clientTrustStore": "/ca", "clientTrustStoreType": "PEM"}, {"tls": True, "tls_authority": "/ca"})
    ],
    "clientTrustStoreType": [({"clientTrustStoreType": "JKS"}, {})],
    "clientTrustStorePasswordPath": [
        (
            TLS | {"clientTrustStore": "/t.jks", "clientTrustStorePasswordPath": "/p"},
            {"tls": True, "tls_authority": "/t.jks", "tls_authority_password_file": "/p"},
        )
    ],
    "tlsClientAuthentication": [
        (
            TLS | SHOWN,
            {"tls": True, "tls_certificate": "/c", "tls_key": "/k", "tls_key_password_file": "/p"},
        ),
        (TLS | SHOWN | {"tlsClientAuthentication": "false"}, {"tls": True}),
    ],
    "tlsCertificatePath": [({"tlsCertificatePath": "/c"}, {})],
    "clientKeyStore": [
        ({"clientKeyStore": "/k"}, {}),
        (
            TLS | {"tlsClientAuthentication": "true", "clientKeyStore": "/k.jks"},
            {"tls": True, "tls_certificate": "/k.jks"},
        ),
    ],
    "clientKeyStoreType": [({"clientKeyStoreType": "JKS"}, {})],
    "clientKeyStorePasswordPath": [({"clientKeyStorePasswordPath": "/p"}, {})],
    "tlsHostnameVerificationEnabled": [
        (TLS | {"tlsHostnameVerificationEnabled": "false"}, {"tls": True, "tls_check_host_name": False})
    ],
    "tlsEnabledProtocols": [(TLS | {"tlsEnabledProtocols": "TLSv1.3"}, {"tls": True, "tls_version_min": "1.3"})],
    "tlsEnabledCipherSuites": [({"tlsEnabledCipherSuites": "x"}, {})],
    "tlsCertFilesRefreshDurationSeconds": [
        (TLS | {"tlsCertFilesRefreshDurationSeconds": "9"}, {"tls": True, "tls_reload_interval_ms": 9000})
    ],
    "clientAuthProviderFactoryClass": [({"clientAuthProviderFactoryClass": ""}, {})],
    "opportunisticStriping": [({"opportunisticStriping": "true"}, {"opportunistic_striping": True})],
    "ensemblePlacementPolicy": [
        ({"ensemblePlacementPolicy": POLICY.format("Default")}, {"placement": "random"}),
        ({"ensemblePlacementPolicy": POLICY.format("Rackaware")}, {"placement": "rack"}),
        ({"ensemblePlacementPolicy": POLICY.format("Rackaware") + "Impl"}, {"placement": "rack"}),
        ({"ensemblePlacementPolicy": POLICY.format("RegionAware")}, {"placement": "region"}),
        ({"ensemblePlacementPolicy": POLICY.format("Zoneaware")}, {"placement": "zone", "placement_rule": True}),
    ],
    "reppDnsResolverClass": [({"reppDnsResolverClass": "org.apache.bookkeeper.net.ScriptBasedMapping"}, {})],
    "networkTopologyScriptFileName": [({"networkTopologyScriptFileName": "/t.sh"}, {"locations_script": "/t.sh"})],
    "networkTopologyScriptNumberArgs": [({"networkTopologyScriptNumberArgs": "9"}, {"locations_script_names_max": 9})],
    "minNumRacksPerWriteQuorum": [({"minNumRacksPerWriteQuorum": "3"}, {"racks_min": 3})],
    "enforceMinNumRacksPerWriteQuorum": [
        ({"enforceMinNumRacksPerWriteQuorum": "true"}, {"placement_rule": True}),
        (
            {"enforceMinNumRacksPerWriteQuorum": "true", "ensemblePlacementPolicy": POLICY.format("Default")},
            {"placement": "random"},
        ),
    ],
    "enforceMinNumFaultDomainsForWrite": [
        ({"enforceMinNumFaultDomainsForWrite": "true"}, {"fault_domains_min": 2}),
        (
            {"enforceMinNumFaultDomainsForWrite": "true", "minNumRacksPerWriteQuorum": "3"},
            {"fault_domains_min": 3, "racks_min": 3},
        ),
    ],
    "minNumZonesPerWriteQuorum": [({"minNumZonesPerWriteQuorum": "1"}, {"zones_min": 1})],
    "desiredNumZonesPerWriteQuorum": [({"desiredNumZonesPerWriteQuorum": "2"}, {"zones_desired": 2})],
    "enforceStrictZoneawarePlacement": [
        (
            {"enforceStrictZoneawarePlacement": "false", "ensemblePlacementPolicy": POLICY.format("Zoneaware")},
            {"placement": "zone"},
        ),
    ],
    "diskWeightBasedPlacementEnabled": [({"diskWeightBasedPlacementEnabled": "true"}, {"disk_weights": True})],
    "bookieMaxMultipleForWeightBasedPlacement": [
        ({"bookieMaxMultipleForWeightBasedPlacement": "5"}, {"disk_weight_max": 5}),
        ({"bookieMaxMultipleForWeightBasedPlacement": "-1"}, {"disk_weight_max": 0}),
    ],
    "getBookieInfoIntervalSeconds": [({"getBookieInfoIntervalSeconds": "9"}, {"disk_weight_interval_ms": 9000})],
    "reppRegionsToWrite": [({"reppRegionsToWrite": "a;b"}, {})],
    "reppMinimumRegionsForDurability": [({"reppMinimumRegionsForDurability": "2"}, {})],
}
URI_KEYS = {
    "metadataServiceUri",
    "zkServers",
    "zkLedgersRootPath",
    "ledgerManagerFactoryClass",
    "ledgerManagerType",
    "zkEnableSecurity",
}


@pytest.mark.parametrize("key", MAPPED)
def test_a_key_becomes_a_setting(key: str) -> None:
    for properties, expected in MAPPED[key]:
        assert client_options(properties) == ClientOptions("", ClientConfig(**expected), ())


def test_every_key_has_a_row_and_every_mapped_one_a_case() -> None:
    rows = index(CLIENT)
    assert set((GOLDEN / "client.txt").read_text().split()) <= rows.keys()
    assert {key for key, row in rows.items() if isinstance(row, Mapped)} == MAPPED.keys() | URI_KEYS


@pytest.mark.parametrize("row", [row for row in CLIENT if isinstance(row, Different)], ids=lambda row: row.key)
def test_what_is_done_otherwise_is_said(row: Different) -> None:
    if row.is_refused:
        with pytest.raises(ConfigError, match=row.key):
            client_options({row.key: "something else"})
    else:
        (notice,) = client_options({row.key: "something else"}).notices
        assert notice.level is row.level
    for value in row.harmless:
        assert client_options({row.key: value}).notices == ()


def test_a_file_names_the_store_and_the_settings(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "client.conf"
    path.write_text("# Pulsar's\nzkServers=z1:2181,z2:2181\nzkLedgersRootPath=/l\nthrottle=5000\nnumIOThreads=8\n")
    found = client_options(path)
    assert found.uri == "zk+null://z1:2181;z2:2181/l"
    assert found.config == ClientConfig()
    assert [(each.level, each.key) for each in found.notices] == [
        (Level.DIFFERENT, "throttle=5000"),
        (Level.UNUSED, "numIOThreads"),
    ]
    with pytest.raises(ConfigError, match="cannot be read"):
        client_options(tmp_path / "missing")
    path.write_bytes(b"a=\xff")
    with pytest.raises(ConfigError, match="not text"):
        client_options(str(path))
    with pytest.raises(ConfigError, match="options="):
        client_options({"metadataServiceUri": "zk://z:1/l", "zkEnableSecurity": "true"})


def test_regions_that_have_to_survive() -> None:
    regions = {"ensemblePlacementPolicy": POLICY.format("RegionAware"), "reppRegionsToWrite": "a;b;c"}
    found = client_options(regions)
    assert found.config == ClientConfig(placement="region", regions_min=2)
    assert [(each.level, each.key) for each in found.notices] == [(Level.DIFFERENT, "reppRegionsToWrite")]
    assert client_options(regions | {"reppMinimumRegionsForDurability": "3"}).config.regions_min == 3
    with pytest.raises(ConfigError, match="reppMinimumRegionsForDurability=4: reppRegionsToWrite names only 3"):
        client_options(regions | {"reppMinimumRegionsForDurability": "4"})


def test_placement_by_java_classes_of_ones_own() -> None:
    found = client_options({"ensemblePlacementPolicy": "com.example.Mine", "reppDnsResolverClass": "com.example.Where"})
    assert found.config == ClientConfig()
    assert [(each.level, each.key) for each in found.notices] == [
        (Level.DANGER, "ensemblePlacementPolicy=Mine"),
        (Level.DANGER, "reppDnsResolverClass=Where"),
    ]


def test_the_environment_counts_for_what_is_not_in_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_ADD_TIMEOUT_MS", "1")
    monkeypatch.setenv("BK_READ_TIMEOUT_MS", "2")
    config = client_options({"addEntryTimeoutSec": "7"}).config
    assert (config.add_timeout_ms, config.read_timeout_ms) == (7000, 2)


def test_credentials_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    sasl = {"clientAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLClientProviderFactory"}
    with pytest.raises(ConfigError, match="BK_SASL_FILE"):
        client_options(sasl)
    monkeypatch.setenv("BK_SASL_FILE", "/etc/bookies/sasl.toml")
    assert client_options(sasl).config.sasl_file == "/etc/bookies/sasl.toml"
    with pytest.raises(ConfigError, match="Java classes"):
        client_options({"clientAuthProviderFactoryClass": "com.example.Mine"})


def test_protection_is_never_dropped_in_silence() -> None:
    found = client_options(TLS | {"tlsEnabledProtocols": "TLSv1.2,TLSv1.1", "tlsEnabledCipherSuites": "x"})
    assert [(each.level, each.key) for each in found.notices] == [
        (Level.DIFFERENT, "tlsEnabledProtocols=TLSv1.1"),
        (Level.DANGER, "tlsEnabledCipherSuites"),
    ]
    with pytest.raises(ConfigError, match="of type BKS"):
        client_options(TLS | {"clientTrustStore": "/t.bks", "clientTrustStoreType": "BKS"})


def test_a_password_is_in_no_notice() -> None:
    (notice,) = client_options({"passwd": "s3cret"}).notices
    assert str(notice).startswith("passwd=***: ")


def test_a_certificate_that_is_to_be_shown_has_to_be_named() -> None:
    tls = {"tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory", "tlsClientAuthentication": "true"}
    with pytest.raises(ConfigError, match="tlsClientAuthentication=true: tlsCertificatePath is missing"):
        client_options(tls)


def test_an_error_names_the_key_that_the_setting_came_from() -> None:
    with pytest.raises(ConfigError, match=r"must be at least 1.* In Apache's configuration: addEntryTimeoutSec=0"):
        client_options({"addEntryTimeoutSec": "0"})

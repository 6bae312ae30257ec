"""Every key of Apache's `bk_server.conf`: what it becomes, or what is said about it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from bookies.apache.server import BookieOptions, bookie_options
from bookies.apache.server_keys import SERVER
from bookies.apache.table import Different, Level, Mapped, Unused, index
from bookies.bookie.identity import check_identity, identity
from bookies.config import BookieConfig, RecoveryConfig, validate
from bookies.errors import ConfigError
from bookies.settings import resolve

GOLDEN = pathlib.Path(__file__).parent.parent.parent / "golden" / "apache-keys"
MIB = 1 << 20
# The lines of the file that Apache ships which are not comments.
SHIPPED = {
    "bookiePort": "3181",
    "httpServerEnabled": "false",
    "httpServerPort": "8080",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
    "journalDirectories": "/tmp/bk-txn",
    "ledgerDirectories": "/tmp/bk-data",
    "metadataServiceUri": "zk+hierarchical://localhost:2181/ledgers",
    "zkServers": "localhost:2181",
    "zkTimeout": "10000",
    "zkEnableSecurity": "false",
}


class FakeHost:
    """A machine with two interfaces and names for both."""

    def address_of(self, interface: str | None) -> str:
        try:
            return {None: "10.0.0.1", "eth1": "10.0.1.1", "lo": "127.0.0.1", "eth2": "10.0.2.1"}[interface]
        except KeyError:
            raise OSError(19, "No such device") from None

    def name_of(self, address: str) -> str:
        return {"10.0.0.1": "bk1.example.org", "10.0.1.1": "bk1-fast.example.org"}.get(address, address)


def options(**properties: str) -> BookieOptions:
    return bookie_options(properties, FakeHost())


PEM = {
    "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
    "tlsCertificatePath": "/c.pem",
}
TRUST = {"tlsTrustStore": "/ca.pem", "tlsTrustStoreType": "PEM"}
CERTIFICATE = {"tls_certificate": "/c.pem"}
HERE = {"host": "0.0.0.0", "advertised_host": "10.0.0.1"}
ZK = "zk+null://z:1/ledgers"
MAPPED: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {
    "httpServerEnabled": [
        ({"httpServerEnabled": "true"}, {"http_port": 8080}),
        ({"httpServerEnabled": "false", "httpServerPort": "8000"}, {}),
    ],
    "httpServerPort": [({"httpServerEnabled": "true", "httpServerPort": "8000"}, {"http_port": 8000})],
    "autoRecoveryDaemonEnabled": [({"autoRecoveryDaemonEnabled": "true"}, {"auto_recovery": True})],
    "lostBookieRecoveryDelay": [({"lostBookieRecoveryDelay": "600"}, {"lost_bookie_delay_s": 600})],
    "auditorPeriodicBookieCheckInterval": [
        ({"auditorPeriodicBookieCheckInterval": "3600"}, {"audit_bookies_interval_s": 3600})
    ],
    "auditorPeriodicCheckInterval": [({"auditorPeriodicCheckInterval": "-1"}, {"audit_ledgers_interval_s": 0})],
    "auditorReplicasCheckInterval": [({"auditorReplicasCheckInterval": "9"}, {"audit_replicas_interval_s": 9})],
    "auditorPeriodicPlacementPolicyCheckInterval": [
        ({"auditorPeriodicPlacementPolicyCheckInterval": "86400"}, {"audit_placement_interval_s": 86_400})
    ],
    "repairedPlacementPolicyNotAdheringBookieEnabled": [
        ({"repairedPlacementPolicyNotAdheringBookieEnabled": "true"}, {"recovery_repairs_placement": True})
    ],
    "auditorLedgerVerificationPercentage": [
        ({"auditorLedgerVerificationPercentage": "5"}, {"audit_verification_percentage": 5})
    ],
    "auditorMaxNumberOfConcurrentOpenLedgerOperations": [
        ({"auditorMaxNumberOfConcurrentOpenLedgerOperations": "500"}, {"audit_ledgers_at_once": 500})
    ],
    "openLedgerRereplicationGracePeriod": [
        ({"openLedgerRereplicationGracePeriod": "30000"}, {"recovery_open_ledger_grace_ms": 30_000})
    ],
    "rwRereplicateBackoffMs": [({"rwRereplicateBackoffMs": "5000"}, {"recovery_backoff_ms": 5_000})],
    "lockReleaseOfFailedLedgerGracePeriod": [
        ({"lockReleaseOfFailedLedgerGracePeriod": "300000"}, {"recovery_backoff_max_ms": 300_000})
    ],
    "replicationRateByBytes": [
        ({"replicationRateByBytes": "-1"}, {"recovery_rate_size": 0}),
        ({"replicationRateByBytes": "1000"}, {"recovery_rate_size": 1_000}),
    ],
    "bookieId": [({"bookieId": "b1"}, {"bookie_id": "b1"})],
    "bookiePort": [({"bookiePort": "3182"}, {"port": 3182})],
    "advertisedAddress": [
        ({"advertisedAddress": "bk.example.org"}, {"advertised_host": "bk.example.org"}),
        (
            {"advertisedAddress": "x", "listeningInterface": "eth1", "useHostNameAsBookieID": "true"},
            {"host": "10.0.1.1", "advertised_host": "x"},
        ),
        ({"advertisedAddress": "2001:db8::1"}, {"host": "::", "advertised_host": "2001:db8::1"}),
    ],
    "listeningInterface": [({"listeningInterface": "eth1"}, {"host": "10.0.1.1", "advertised_host": "10.0.1.1"})],
    "useHostNameAsBookieID": [({"useHostNameAsBookieID": "true"}, {"advertised_host": "bk1.example.org"})],
    "useShortHostName": [
        ({"useHostNameAsBookieID": "true", "useShortHostName": "true"}, {"advertised_host": "bk1"}),
        ({"useShortHostName": "true"}, {}),
    ],
    "allowLoopback": [
        ({"listeningInterface": "lo", "allowLoopback": "true"}, {"host": "127.0.0.1", "advertised_host": "127.0.0.1"})
    ],
    "allowEphemeralPorts": [({"bookiePort": "0", "allowEphemeralPorts": "true"}, {"port": 0})],
    "journalDirectories": [({"journalDirectories": "/a, /b"}, {"journal_directories": ("/a", "/b")})],
    "journalDirectory": [
        ({"journalDirectory": "/a"}, {"journal_directories": ("/a",)}),
        ({"journalDirectory": "/a", "journalDirectories": "/b"}, {"journal_directories": ("/b",)}),
    ],
    "ledgerDirectories": [({"ledgerDirectories": "/a,/b"}, {"ledger_directories": ("/a", "/b")})],
    "indexDirectories": [({"indexDirectories": "/i"}, {"index_directories": ("/i",)})],
    "allowMultipleDirsUnderSameDiskPartition": [
        (
            {"allowMultipleDirsUnderSameDiskPartition": "false"},
            {"allow_multiple_dirs_under_same_disk_partition": False},
        )
    ],
    "allowStorageExpansion": [({"allowStorageExpansion": "true"}, {"allow_storage_expansion": True})],
    "persistBookieStatusEnabled": [({"persistBookieStatusEnabled": "TRUE"}, {"persist_bookie_status": True})],
    "nettyMaxFrameSizeBytes": [({"nettyMaxFrameSizeBytes": "6000000"}, {"frame_size_max": 6_000_000})],
    "maxBatchReadSize": [({"maxBatchReadSize": "100000"}, {"batch_read_size_max": 100_000})],
    "zkTimeout": [({"zkTimeout": "30000"}, {"lease_ms": 30_000})],
    "journalMaxSizeMB": [({"journalMaxSizeMB": "2048"}, {"journal_size_max": 2048 * MIB})],
    "journalMaxBackups": [({"journalMaxBackups": "5"}, {"journal_backups_max": 5})],
    "journalPreAllocSizeMB": [({"journalPreAllocSizeMB": "16"}, {"journal_preallocate_size": 16 * MIB})],
    "journalAlignmentSize": [({"journalAlignmentSize": "4096"}, {"journal_alignment": 4096})],
    "logSizeLimit": [({"logSizeLimit": "1073741824"}, {"entry_log_size_max": 1 << 30})],
    "pageSize": [({"pageSize": "4096"}, {"index_page_size": 4096})],
    "pageLimit": [
        ({"pageLimit": "1000"}, {"index_cache_size": 8_192_000}),
        ({"pageLimit": "1000", "pageSize": "4096"}, {"index_cache_size": 4_096_000, "index_page_size": 4096}),
        ({"pageLimit": "-1"}, {}),
        ({"pageLimit": "10"}, {"index_cache_size": MIB}),
    ],
    "openFileLimit": [
        ({"openFileLimit": "20000"}, {"open_files_max": 20_000}),
        ({"openFileLimit": "0"}, {}),  # as in the file that Pulsar ships
        ({"openFileLimit": "5"}, {"open_files_max": 8}),
    ],
    "skipListSizeLimit": [({"skipListSizeLimit": "67108864"}, {"write_cache_size": 128 * MIB})],
    "dbStorage_writeCacheMaxSizeMb": [
        ({"dbStorage_writeCacheMaxSizeMb": "512"}, {}),
        (
            {
                "dbStorage_writeCacheMaxSizeMb": "512",
                "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            },
            {"write_cache_size": 512 * MIB, "ledger_index": "rocksdb"},
        ),
    ],
    "ledgerStorageClass": [
        ({"ledgerStorageClass": f"org.apache.bookkeeper.bookie.{name}"}, {"ledger_index": index})
        for name, index in (("storage.ldb.DbLedgerStorage", "rocksdb"), ("SortedLedgerStorage", "files"))
    ],
    "numReadWorkerThreads": [
        ({"numReadWorkerThreads": "8"}, {"read_workers": 8}),
        ({"numReadWorkerThreads": "0"}, {"read_workers": 1}),
        ({"numReadWorkerThreads": "500"}, {"read_workers": 64}),
    ],
    "gcWaitTime": [({"gcWaitTime": "900000"}, {"gc_interval_ms": 900_000})],
    "gcMetadataOpRateLimit": [({"gcMetadataOpRateLimit": "500"}, {"gc_metadata_rate": 500})],
    "useTransactionalCompaction": [
        ({"useTransactionalCompaction": "false"}, {"compaction": "plain"}),
        ({"useTransactionalCompaction": "true"}, {"compaction": "transactional"}),
    ],
    "minorCompactionThreshold": [
        ({"minorCompactionThreshold": "0.3"}, {"minor_compaction_threshold": 30}),
        ({"minorCompactionThreshold": "-1"}, {"minor_compaction_interval_ms": 0}),
    ],
    "minorCompactionInterval": [
        ({"minorCompactionInterval": "7200"}, {"minor_compaction_interval_ms": 7_200_000}),
        ({"minorCompactionInterval": "-1"}, {"minor_compaction_interval_ms": 0}),
    ],
    "majorCompactionThreshold": [
        ({"majorCompactionThreshold": "0.5"}, {"major_compaction_threshold": 50}),
        ({"majorCompactionThreshold": "0", "majorCompactionInterval": "9"}, {"major_compaction_interval_ms": 0}),
    ],
    "majorCompactionInterval": [({"majorCompactionInterval": "86401"}, {"major_compaction_interval_ms": 86_401_000})],
    "isThrottleByBytes": [({"isThrottleByBytes": "true"}, {})],
    "compactionRateByBytes": [
        ({"compactionRateByBytes": "1000000"}, {}),
        ({"compactionRateByBytes": "1000000", "isThrottleByBytes": "true"}, {"compaction_rate_size": 1_000_000}),
    ],
    "diskUsageThreshold": [
        ({"diskUsageThreshold": "0.97"}, {"disk_usage_threshold": 97}),
        ({"diskUsageThreshold": "0.999"}, {"disk_usage_threshold": 99}),  # Apache's takes whatever is below 1
    ],
    "diskUsageWarnThreshold": [({"diskUsageWarnThreshold": "0.91"}, {"disk_usage_warn_threshold": 91})],
    "diskUsageLwmThreshold": [({"diskUsageLwmThreshold": "0.85"}, {"disk_usage_lwm_threshold": 85})],
    "diskCheckInterval": [({"diskCheckInterval": "5000"}, {"disk_check_interval_ms": 5000})],
    "readOnlyModeOnAnyDiskFullEnabled": [
        ({"readOnlyModeOnAnyDiskFullEnabled": "false"}, {"read_only_on_any_disk_full": False})
    ],
    "tlsProviderFactoryClass": [
        (PEM, {"tls_certificate": "/c.pem"}),
        ({"tlsProviderFactoryClass": "", "tlsKeyStore": "/k.jks"}, {}),
        ({"tlsProviderFactoryClass": "null"}, {}),
    ],
    "tlsCertificatePath": [({"tlsCertificatePath": "/c.pem"}, {})],
    "tlsKeyStore": [
        (PEM | {"tlsKeyStore": "/k.pem", "tlsKeyStoreType": "PEM"}, CERTIFICATE | {"tls_key": "/k.pem"}),
        (PEM | {"tlsKeyStore": "/k.jks"}, {"tls_certificate": "/k.jks"}),
        (PEM | {"tlsKeyStore": "/k.p12", "tlsKeyStoreType": "pkcs12"}, {"tls_certificate": "/k.p12"}),
    ],
    "tlsKeyStoreType": [({"tlsKeyStoreType": "JKS"}, {})],
    "tlsKeyStorePasswordPath": [
        (
            PEM | {"tlsKeyStore": "/k", "tlsKeyStoreType": "pem", "tlsKeyStorePasswordPath": "/p"},
            CERTIFICATE | {"tls_key": "/k", "tls_key_password_file": "/p"},
        )
    ],
    "tlsTrustStore": [(PEM | TRUST, CERTIFICATE | {"tls_authority": "/ca.pem"})],
    "tlsTrustStoreType": [({"tlsTrustStoreType": "JKS"}, {})],
    "tlsTrustStorePasswordPath": [
        (
            PEM | {"tlsTrustStore": "/t.jks", "tlsTrustStorePasswordPath": "/p"},
            CERTIFICATE | {"tls_authority": "/t.jks", "tls_authority_password_file": "/p"},
        ),
        (PEM | TRUST | {"tlsTrustStorePasswordPath": "/p"}, CERTIFICATE | {"tls_authority": "/ca.pem"}),
    ],
    "tlsClientAuthentication": [
        (
            PEM | TRUST | {"tlsClientAuthentication": "true"},
            CERTIFICATE | {"tls_authority": "/ca.pem", "tls_client_certificates": True},
        ),
        ({"tlsClientAuthentication": "true"}, {}),
    ],
    "tlsEnabledProtocols": [
        (PEM | {"tlsEnabledProtocols": "TLSv1.3"}, CERTIFICATE | {"tls_version_min": "1.3"}),
        (PEM | {"tlsEnabledProtocols": "TLSv1.3,TLSv1.2"}, CERTIFICATE | {"tls_version_min": "1.2"}),
        (PEM | {"tlsEnabledProtocols": "TLSv1.1"}, CERTIFICATE),
    ],
    "tlsEnabledCipherSuites": [({"tlsEnabledCipherSuites": "x"}, {})],
    "tlsCertFilesRefreshDurationSeconds": [
        (PEM | {"tlsCertFilesRefreshDurationSeconds": "300"}, CERTIFICATE | {"tls_reload_interval_ms": 300_000}),
        (PEM | {"tlsCertFilesRefreshDurationSeconds": "0"}, CERTIFICATE),
    ],
    "bookieAuthProviderFactoryClass": [
        (
            {"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"},
            {"authentication": "sasl", "sasl_allowed_ids": ".*bookkeeper.*"},
        )
    ],
    "saslJaasClientAllowedIds": [
        (
            {
                "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
                "saslJaasClientAllowedIds": "app-.*",
            },
            {"authentication": "sasl", "sasl_allowed_ids": "app-.*"},
        )
    ],
    "authorizedRoles": [
        (
            {
                "bookieAuthProviderFactoryClass": "org.apache.bookkeeper.tls.BookieAuthZFactory",
                "authorizedRoles": "a,b",
            },
            {"authentication": "certificate", "authorized_roles": ("a", "b")},
        )
    ],
    "localScrubInterval": [({"localScrubInterval": "86400"}, {"scrub_period_ms": 86_400_000})],
}
URIS = {
    "metadataServiceUri": ({"metadataServiceUri": "etcd://e:1/s", "zkServers": "z:1"}, "etcd://e:1/s"),
    "zkServers": ({"zkServers": "z:1,y:2"}, "zk+null://z:1;y:2/ledgers"),
    "zkLedgersRootPath": ({"zkServers": "z:1", "zkLedgersRootPath": "/bk"}, "zk+null://z:1/bk"),
    "ledgerManagerFactoryClass": (
        {
            "zkServers": "z:1",
            "ledgerManagerFactoryClass": "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
        },
        "zk+longhierarchical://z:1/ledgers",
    ),
    "ledgerManagerType": ({"zkServers": "z:1", "ledgerManagerType": "flat"}, "zk+flat://z:1/ledgers"),
    "zkEnableSecurity": (
        {"zkEnableSecurity": "true", "metadataServiceUri": "zk://z:1/l?options=/f"},
        "zk://z:1/l?options=/f",
    ),
}


@pytest.mark.parametrize("key", MAPPED)
def test_a_key_becomes_a_setting(key: str) -> None:
    for properties, expected in MAPPED[key]:
        found = options(**properties)
        assert found.settings | found.recovery_settings == HERE | expected
        assert {each.level for each in found.notices} <= {Level.DIFFERENT}
        assert found.metadata_uri is None
        BookieConfig(**found.settings)
        RecoveryConfig(**found.recovery_settings)


@pytest.mark.parametrize("key", URIS)
def test_a_key_becomes_a_part_of_the_metadata_uri(key: str) -> None:
    properties, uri = URIS[key]
    assert options(**properties).metadata_uri == uri


def test_every_key_has_a_row_and_every_mapped_one_a_case() -> None:
    rows = index(SERVER)
    assert set((GOLDEN / "server.txt").read_text().split()) <= rows.keys()
    assert {key for key, row in rows.items() if isinstance(row, Mapped)} == {*MAPPED, *URIS}
    for row in SERVER:
        if isinstance(row, Mapped) and row.convert is not None:
            ours = (BookieConfig.__dataclass_fields__, RecoveryConfig.__dataclass_fields__)
            assert any(row.setting in each for each in ours)


@pytest.mark.parametrize("row", [row for row in SERVER if isinstance(row, Different)], ids=lambda row: row.key)
def test_what_is_done_otherwise_is_said_with_the_way_out(row: Different) -> None:
    strange = "something else"
    if row.is_refused:
        with pytest.raises(ConfigError, match=row.key):
            options(**{row.key: strange})
    else:
        notices = options(**{row.key: strange}).notices
        assert [(each.level, each.key) for each in notices] == [(row.level, f"{row.key}={strange}")]
        assert len(notices[0].text) > 20
    for value in row.harmless:
        assert options(**{row.key: value}).notices == []


def test_what_endangers_data_is_loud() -> None:
    for key, value in (
        ("journalSyncData", "false"),
        ("journalWriteData", "false"),
        ("skipReplayJournalInvalidRecord", "true"),
        ("dataIntegrityStampMissingCookies", "true"),
    ):
        (notice,) = options(**{key: value}).notices
        assert notice.level is Level.DANGER
        assert str(notice).startswith(f"{key}={value}: ")


def test_unknown_keys_have_a_neighbour_and_unused_ones_share_a_line() -> None:
    found = options(jounalDirectories="/a", serverTcpNoDelay="true", gcEntryLogMetadataCachePath="x", zzzzzz="1")
    assert [(each.level, each.key) for each in found.notices] == [
        (Level.UNKNOWN, "jounalDirectories"),
        (Level.UNKNOWN, "zzzzzz"),
        (Level.UNUSED, "serverTcpNoDelay gcEntryLogMetadataCachePath"),
    ]
    assert "did you mean journalDirectories?" in found.notices[0].text
    assert "did you mean" not in found.notices[1].text
    assert all(row.reason for row in SERVER if isinstance(row, Unused))


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"bookiePort": "many"}, "bookiePort=many"),
        ({"bookiePort": "0"}, "allowEphemeralPorts"),
        ({"diskUsageThreshold": "x"}, "diskUsageThreshold=x"),
        ({"allowStorageExpansion": "maybe"}, "allowStorageExpansion=maybe: true or false"),
        ({"pageLimit": "x"}, "pageLimit=x"),
        ({"minorCompactionThreshold": "x"}, "minorCompactionThreshold=x"),
        ({"listeningInterface": "eth9"}, "listeningInterface=eth9 has no address"),
        ({"listeningInterface": "lo"}, "no other machine can reach"),
        ({"listeningInterface": "eth2", "useHostNameAsBookieID": "true"}, "has no name"),
        ({"zkServers": "z:1", "ledgerManagerType": "ms"}, "flat, hierarchical or longhierarchical"),
        ({"zkServers": "z:1", "ledgerManagerFactoryClass": "a.B"}, "B is unknown"),
        ({"zkServers": "z:1", "zkEnableSecurity": "true"}, "options="),
        (PEM | {"tlsKeyStore": "/k.bks", "tlsKeyStoreType": "BKS"}, "of type BKS.*keytool.*tlsKeyStoreType=PKCS12"),
        (PEM | {"tlsTrustStore": "/k.bks", "tlsTrustStoreType": "JCEKS"}, "of type JCEKS"),
        (PEM | {"tlsCertificatePath": ""}, "tlsCertificatePath is missing"),
        ({"tlsProviderFactoryClass": "com.example.Mine"}, "leave connections unprotected"),
        ({"bookieAuthProviderFactoryClass": "com.example.Mine"}, "admit every client"),
    ],
)
def test_values_that_cannot_be_taken_are_refused(properties: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**properties)


def test_the_file_that_apache_ships() -> None:
    found = options(**SHIPPED)
    assert found.settings == HERE | {
        "port": 3181,
        "journal_directories": ("/tmp/bk-txn",),
        "ledger_directories": ("/tmp/bk-data",),
        "lease_ms": 10_000,
    }
    assert found.metadata_uri == "zk+hierarchical://localhost:2181/ledgers"
    assert [(each.level, each.key) for each in found.notices] == [(Level.UNUSED, "httpServerClass")]
    config = validate(BookieConfig(**found.settings))
    check_identity(config)
    assert identity(config) == "10.0.0.1:3181"


def test_a_lower_disk_threshold_takes_our_marks_along() -> None:
    """The file names one of three; Apache takes the threshold for the low-water mark then."""
    for value, warn in (("0.90", 90), ("0.5", 50)):
        found = options(diskUsageThreshold=value).settings
        config = validate(BookieConfig(**found))
        marks = (config.disk_usage_threshold, config.disk_usage_lwm_threshold, config.disk_usage_warn_threshold)
        assert marks == (warn, warn, warn)
    found = options(diskUsageThreshold="0.94").settings
    assert "disk_usage_lwm_threshold" not in found
    named = options(diskUsageThreshold="0.90", diskUsageLwmThreshold="0.8", diskUsageWarnThreshold="0.85").settings
    assert (named["disk_usage_lwm_threshold"], named["disk_usage_warn_threshold"]) == (80, 85)


@pytest.mark.parametrize("value", ["true", "yes", "on", "1", "TRUE"])
def test_protected_znodes_are_asked_for_in_several_words(value: str) -> None:
    with pytest.raises(ConfigError, match="zkEnableSecurity=true: Apache reads the identity from JAAS"):
        options(zkEnableSecurity=value, metadataServiceUri="zk://z:1/l")


@pytest.mark.parametrize("value", ["false,true", "maybe"])
def test_nobody_guesses_whether_znodes_are_to_be_protected(value: str) -> None:
    with pytest.raises(ConfigError, match=r"zkEnableSecurity=.*: true or false"):
        options(zkEnableSecurity=value, metadataServiceUri="zk://z:1/l")


def test_other_words_for_true_and_false_ask_for_nothing_else() -> None:
    assert options(autoRecoveryDaemonEnabled="no", journalSyncData="yes", readOnlyModeEnabled="on").notices == []
    assert len(options(journalSyncData="0").notices) == 1


@pytest.mark.parametrize("key", ["localScrubInterval", "majorCompactionThreshold", "diskUsageThreshold"])
@pytest.mark.parametrize("value", ["inf", "nan", "1e400"])
def test_numbers_without_end(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}={value}"):
        options(**{key: value})


def test_an_error_about_a_setting_names_the_keys_it_came_from() -> None:
    found = options(majorCompactionThreshold="80")
    with pytest.raises(ConfigError, match=r"\. In bk\.conf: majorCompactionThreshold=80$"):
        resolve(BookieConfig, found.layer("bk.conf"))

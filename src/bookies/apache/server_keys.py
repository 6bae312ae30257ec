"""Keys of Apache's `bk_server.conf`, 4.16 to 4.18, and what becomes of each. `bk bookie run --conf` reads them.

Source: metadata 12, storage 11; the keys: ServerConfiguration and AbstractConfiguration of Apache's.
"""

from __future__ import annotations

from bookies.apache.table import (
    Different,
    Level,
    Mapped,
    Row,
    Unused,
    disk_percent,
    mebibytes,
    milliseconds,
    names,
    natural,
    number,
    positive,
    seconds,
    switch,
    text,
)

_METADATA = "metadata URI"
_ADDRESS = "host, advertised_host"
_TLS = "with tlsProviderFactoryClass only"
_NO_HTTP = (
    "there is no HTTP server: `bk help apache` names the command that answers what each of Apache's endpoints does"
)
_PACKAGE = "org.apache.bookkeeper."

SERVER: tuple[Row, ...] = (
    # -- who it is, and where
    Mapped("bookieId", "bookie_id", text),
    Mapped("bookiePort", "port", number),
    Mapped(
        "advertisedAddress",
        _ADDRESS,
        note="published; the bookie listens on all interfaces, of IPv6 too if it is an address of that",
    ),
    Mapped("listeningInterface", _ADDRESS, note="listens on, and publishes, the address of this interface"),
    Mapped("useHostNameAsBookieID", _ADDRESS, note="publishes the host's name in place of its address"),
    Mapped("useShortHostName", _ADDRESS, note="that name up to the first dot"),
    Mapped("allowLoopback", _ADDRESS, note="without it an address of the loopback interface is refused"),
    Mapped("allowEphemeralPorts", "port", note="without it bookiePort=0 is refused"),
    # -- where things are
    Mapped("metadataServiceUri", _METADATA, note="as it is"),
    Mapped("zkServers", _METADATA, note="without metadataServiceUri: zk+null://SERVERS/ROOT"),
    Mapped("zkLedgersRootPath", _METADATA, note="the path in it; /ledgers without"),
    Mapped("ledgerManagerFactoryClass", _METADATA, note="its class name decides the scheme: zk+flat and so on"),
    Mapped("ledgerManagerType", _METADATA, note="the same, older"),
    Mapped("zkEnableSecurity", _METADATA, note="true: the URI has to name a file with the identity, ?options=FILE"),
    Mapped("zkTimeout", "lease_ms", number),
    Mapped("journalDirectories", "journal_directories", names),
    Mapped("journalDirectory", "journal_directories", note="where there are no journalDirectories"),
    Mapped("ledgerDirectories", "ledger_directories", names),
    Mapped("indexDirectories", "index_directories", names),
    Mapped("allowMultipleDirsUnderSameDiskPartition", "allow_multiple_dirs_under_same_disk_partition", switch),
    Mapped("allowStorageExpansion", "allow_storage_expansion", switch),
    Mapped("persistBookieStatusEnabled", "persist_bookie_status", switch),
    Mapped("nettyMaxFrameSizeBytes", "frame_size_max", number),
    Mapped("maxBatchReadSize", "batch_read_size_max", number),
    # -- journal, entry logs, indexes
    Mapped("journalMaxSizeMB", "journal_size_max", mebibytes),
    Mapped("journalMaxBackups", "journal_backups_max", number),
    Mapped("journalPreAllocSizeMB", "journal_preallocate_size", mebibytes),
    Mapped("journalAlignmentSize", "journal_alignment", number),
    Mapped("logSizeLimit", "entry_log_size_max", number),
    Mapped("pageSize", "index_page_size", number),
    Mapped("pageLimit", "index_cache_size", note="pages of pageSize, 1 MiB at least; 0 and less: our default"),
    Mapped("openFileLimit", "open_files_max", note="8 at least; 0 and less: our default"),
    Mapped("skipListSizeLimit", "write_cache_size", note="twice: Apache's is what each half holds"),
    Mapped("dbStorage_writeCacheMaxSizeMb", "write_cache_size", note="MiB; with DbLedgerStorage only"),
    Mapped("numReadWorkerThreads", "read_workers", note="1 to 64"),
    # -- collection and compaction
    Mapped("gcWaitTime", "gc_interval_ms", milliseconds),
    Mapped("gcMetadataOpRateLimit", "gc_metadata_rate", positive),
    Mapped("useTransactionalCompaction", "compaction", lambda value: "transactional" if switch(value) else "plain"),
    Mapped("minorCompactionThreshold", "minor_compaction_threshold", note="a fraction; 0 and less: none"),
    Mapped("minorCompactionInterval", "minor_compaction_interval_ms", seconds, "seconds; 0 and less: none"),
    Mapped("majorCompactionThreshold", "major_compaction_threshold", note="a fraction; 0 and less: none"),
    Mapped("majorCompactionInterval", "major_compaction_interval_ms", seconds, "seconds; 0 and less: none"),
    Mapped("isThrottleByBytes", "compaction_rate_size", note="true: compactionRateByBytes counts"),
    Mapped("compactionRateByBytes", "compaction_rate_size", note="with isThrottleByBytes=true only"),
    # -- disks
    Mapped("diskUsageThreshold", "disk_usage_threshold", disk_percent, "a fraction; 99 percent at most"),
    Mapped("diskUsageWarnThreshold", "disk_usage_warn_threshold", disk_percent, "a fraction; 99 percent at most"),
    Mapped("diskUsageLwmThreshold", "disk_usage_lwm_threshold", disk_percent, "a fraction; 99 percent at most"),
    Mapped("diskCheckInterval", "disk_check_interval_ms", number),
    Mapped("readOnlyModeOnAnyDiskFullEnabled", "read_only_on_any_disk_full", switch),
    Mapped("localScrubInterval", "scrub_period_ms", seconds, "seconds; 0: never"),
    # -- TLS and authentication
    Mapped(
        "tlsProviderFactoryClass", "tls_certificate", note="set: TLS as the keys below say; other classes are refused"
    ),
    Mapped("tlsCertificatePath", "tls_certificate", note=_TLS),
    Mapped("tlsKeyStore", "tls_key", note=_TLS),
    Mapped("tlsKeyStoreType", "tls_key", note="PEM; others are refused, with the command that converts them"),
    Mapped("tlsKeyStorePasswordPath", "tls_key_password_file", note=_TLS),
    Mapped("tlsTrustStore", "tls_authority", note=_TLS),
    Mapped("tlsTrustStoreType", "tls_authority", note="as tlsKeyStoreType"),
    Mapped("tlsClientAuthentication", "tls_client_certificates", note=_TLS),
    Mapped("tlsEnabledProtocols", "tls_version_min", note="the oldest of them; before TLSv1.2: said"),
    Mapped("tlsEnabledCipherSuites", "tls_ciphers", note="said: OpenSSL has other names"),
    Mapped("tlsCertFilesRefreshDurationSeconds", "tls_reload_interval_ms", note="seconds; 0: our default"),
    Mapped("bookieAuthProviderFactoryClass", "authentication", note="SASL or roles; other classes are refused"),
    Mapped("authorizedRoles", "authorized_roles", note="with BookieAuthZFactory only"),
    Mapped("saslJaasClientAllowedIds", "sasl_allowed_ids", note="with SASLBookieAuthProviderFactory only"),
    # -- auto-recovery
    Mapped("autoRecoveryDaemonEnabled", "auto_recovery", switch),
    Mapped("lostBookieRecoveryDelay", "lost_bookie_delay_s", natural, note="s; the metadata store's own comes first"),
    Mapped("auditorPeriodicBookieCheckInterval", "audit_bookies_interval_s", natural, note="s"),
    Mapped("auditorPeriodicCheckInterval", "audit_ledgers_interval_s", natural, note="s"),
    Mapped("auditorReplicasCheckInterval", "audit_replicas_interval_s", natural, note="s"),
    Mapped("auditorPeriodicPlacementPolicyCheckInterval", "audit_placement_interval_s", natural, note="s"),
    Mapped("repairedPlacementPolicyNotAdheringBookieEnabled", "recovery_repairs_placement", switch),
    Mapped("auditorLedgerVerificationPercentage", "audit_verification_percentage", natural),
    Mapped("auditorMaxNumberOfConcurrentOpenLedgerOperations", "audit_ledgers_at_once", positive),
    Mapped("openLedgerRereplicationGracePeriod", "recovery_open_ledger_grace_ms", natural, note="ms"),
    Mapped("rwRereplicateBackoffMs", "recovery_backoff_ms", positive, note="ms"),
    Mapped("lockReleaseOfFailedLedgerGracePeriod", "recovery_backoff_max_ms", positive, note="ms"),
    Mapped("replicationRateByBytes", "recovery_rate_size", natural, note="less than 0: no limit"),
    # -- safety: said loudly
    Different(
        "journalSyncData",
        ("true", ""),
        "ignored: every add is on the disk before it is answered. To write without waiting, ask for it per ledger "
        "(DEFERRED_SYNC), which the bookie allows",
        Level.DANGER,
    ),
    Different(
        "journalWriteData",
        ("true", ""),
        "ignored: there is no bookie without a journal here. Expect the writes of a journal on its disk",
        Level.DANGER,
    ),
    Different(
        "skipReplayJournalInvalidRecord",
        ("false", ""),
        "ignored: a journal that cannot be read is never skipped, for entries in it were acknowledged; "
        "`bk bookie repair` says what is lost",
        Level.DANGER,
    ),
    Different(
        "forceReadOnlyBookie",
        ("false", ""),
        "a bookie is made read-only while it runs: start it without the key, then `bk bookie read-only`, which "
        "persistBookieStatusEnabled=true keeps over restarts",
        is_refused=True,
    ),
    Different(
        "readOnlyModeEnabled",
        ("true", ""),
        "ignored: a bookie whose disks are full becomes read-only and does not stop, since what it holds is readable",
    ),
    Different(
        "dataIntegrityStampMissingCookies",
        ("false", ""),
        "ignored: a bookie that has lost directories never starts as if nothing was; `bk bookie recover`, then "
        "`bk bookie format` (docs/howto/replace-a-disk.md)",
        Level.DANGER,
    ),
    Different(
        "dataIntegrityChecking",
        ("false", ""),
        "ignored: cookies are always checked in the strict way, and the scrub looks at what is stored (docs/howto/check-for-damage.md)",
    ),
    Different(
        "permittedStartupUsers",
        ("",),
        "ignored: whoever may read the directories may start the bookie; let only that user own them",
        Level.DANGER,
    ),
    Different(
        "ledgerStorageClass",
        (
            "",
            f"{_PACKAGE}bookie.sortedledgerstorage",
            f"{_PACKAGE}bookie.interleavedledgerstorage",
        ),
        "directories with a RocksDB index are not served in place: stop Apache's bookie, `bk bookie convert DIR --to "
        "index-files`, then start this one; the key itself does nothing",
    ),
    Different(
        "journalFormatVersionToWrite",
        ("6", ""),
        "ignored: journals are written in version 6; Apache's bookies from 4.16 on read it",
    ),
    Different(
        "fileInfoFormatVersionToWrite", ("1", "0", ""), "ignored: index files have version 1, as Apache's from 4.7 on"
    ),
    # -- done in another way
    Different("verifyMetadataOnGC", ("true", "false", ""), "collection always verifies"),
    Different(
        "gcOverreplicatedLedgerWaitTime",
        ("0", "86400000", ""),
        "surplus copies are not collected unless asked for: --set gc_surplus_ms=MS (docs/howto/delete-surplus-copies.md)",
    ),
    Different(
        "entryLogPerLedgerEnabled",
        ("false", ""),
        "ignored: entries of all ledgers share entry logs, sorted by ledger when they are flushed",
    ),
    Different(
        "compactionRateByEntries",
        ("", "1000"),
        "compaction is limited in bytes: isThrottleByBytes=true and compactionRateByBytes",
    ),
    Different(
        "compactionRate", ("", "1000"), "compaction is limited in bytes: isThrottleByBytes=true, compactionRateByBytes"
    ),
    Different("httpServerEnabled", ("false", ""), _NO_HTTP),
    Different(
        "extraServerComponents",
        ("",),
        "Java classes cannot be loaded here: run what they do beside the bookie",
        Level.DANGER,
    ),
    Different("disableServerSocketBind", ("false", ""), "ignored: a bookie is a process of its own and has to listen"),
    Different("enableLocalTransport", ("false", ""), "ignored: clients always connect through TCP"),
    Different("sortedLedgerStorageEnabled", ("true", "false", ""), "entries are always sorted when they are flushed"),
    Different(
        "localConsistencyCheckOnStartup",
        ("false", ""),
        "ignored: `bk bookie repair DIR --dry-run` looks at all files of a stopped bookie, the scrub while it runs",
    ),
    Different(
        "minUsableSizeForHighPriorityWrites",
        ("",),
        "in percent here: --set disk_usage_priority_threshold=PERCENT (docs/howto/free-a-full-disk.md)",
    ),
    Different("minUsableSizeForEntryLogCreation", ("",), "in percent here: --set disk_usage_threshold=PERCENT"),
    Different("minUsableSizeForIndexFileCreation", ("",), "in percent here: --set disk_usage_threshold=PERCENT"),
    Different(
        "allowShadedLedgerManagerFactoryClass", ("true", "false", ""), "known names are taken with and without prefix"
    ),
    Different(
        "shadedLedgerManagerFactoryClassPrefix",
        ("", "dlshade."),
        "ignored: only the prefix dlshade. is known in LAYOUT",
    ),
    Different("ledgerManagerFactoryDisableClassCheck", ("",), "ignored: a URI that asks for another layout is refused"),
    Different(
        "registrationManagerClass",
        ("", f"{_PACKAGE}discover.zkregistrationmanager"),
        "Java classes cannot be loaded here: the metadata URI decides",
        Level.DANGER,
    ),
    Different("enableStatistics", ("true", "false", ""), "there is no metrics endpoint yet"),
    # -- no meaning here
    Unused(
        "threads, queues and timers of Apache's server: one loop serves all connections, bounded in bytes",
        "numAddWorkerThreads numLongPollWorkerThreads numHighPriorityWorkerThreads numJournalCallbackThreads "
        "maxPendingReadRequestsPerThread maxPendingAddRequestsPerThread readWorkerThreadsThrottlingEnabled "
        "maxAddsInProgressLimit maxReadsInProgressLimit closeChannelOnResponseTimeout "
        "waitTimeoutOnResponseBackpressureMs requestTimerTickDurationMs requestTimerNumTicks serverNumAcceptorThreads "
        "serverNumIOThreads serverWriteBufferLowWaterMark serverWriteBufferHighWaterMark enableBusyWait "
        "preserveMdcForTaskExecution enableTaskExecutionStats bookieDeathWatchInterval journalQueueSize "
        "ignoreExtraServerComponentsStartupFailures",
    ),
    Unused(
        "sockets: small messages are never held back, and connections are closed in an orderly way",
        "serverTcpNoDelay serverSockKeepalive serverTcpLinger",
    ),
    Unused(
        "the memory of a JVM",
        "byteBufAllocatorSizeInitial byteBufAllocatorSizeMin byteBufAllocatorSizeMax allocatorPoolingPolicy "
        "allocatorPoolingConcurrency allocatorOutOfMemoryPolicy allocatorLeakDetectionPolicy "
        "allocatorExitOnOutOfMemory journalMaxMemorySizeMb skipListArenaChunkSize skipListArenaMaxAllocSize "
        "readBufferSizeBytes writeBufferSizeBytes journalWriteBufferSizeKB",
    ),
    Unused(
        "how a journal gathers what it syncs: what comes in during one sync is the next group",
        "journalAdaptiveGroupWrites journalMaxGroupWaitMSec journalBufferedWritesThreshold "
        "journalBufferedEntriesThreshold journalFlushWhenQueueEmpty journalRemoveFromPageCache "
        "journalPageCacheFlushIntervalMSec journalChannelProvider journalReuseFiles",
    ),
    Unused(
        "flushing and files: checkpoints have settings of their own (docs/reference/settings.md)",
        "flushInterval flushEntrylogBytes entryLogFilePreallocationEnabled numOfMemtableFlushThreads "
        "entrylogMapAccessExpiryTimeInSeconds maximumNumberOfActiveEntryLogs entryLogPerLedgerCounterLimitsMultFactor "
        "fileInfoCacheInitialCapacity fileInfoMaxIdleTime",
    ),
    Unused(
        "details of collection: logs are compacted when less is wanted of them than the threshold says",
        "forceAllowCompaction isForceGCAllowWhenNoSpace minorCompactionMaxTimeMillis majorCompactionMaxTimeMillis "
        "compactionMaxOutstandingRequests entryLocationCompactionInterval gcOverreplicatedLedgerMaxConcurrentRequests "
        "gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath useTargetEntryLogSizeForGc localScrubRateLimit",
    ),
    Unused(
        "RocksDB, and Apache's read cache: the index is files here, and the system's page cache is the read cache",
        "dbStorage_readAheadCacheMaxSizeMb dbStorage_readAheadCacheBatchSize "
        "dbStorage_readAheadCacheBatchBytesSize dbStorage_maxThrottleTimeMs dbStorage_rocksDB_blockCacheSize "
        "dbStorage_rocksDB_writeBufferSizeMB dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_blockSize "
        "dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_numLevels "
        "dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_maxSizeInLevel1MB dbStorage_rocksDB_logPath "
        "dbStorage_rocksDB_logLevel dbStorage_rocksDB_lz4CompressionEnabled dbStorage_rocksDB_format_version "
        "dbStorage_directIOEntryLogger dbStorage_directIOEntryLoggerTotalWriteBufferSizeMb "
        "dbStorage_directIOEntryLoggerTotalReadBufferSizeMb dbStorage_directIOEntryLoggerReadBufferSizeMb "
        "dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds defaultRocksdbConf entryLocationRocksdbConf "
        "ledgerMetadataRocksdbConf maxOperationNumbersInSingleRocksdbWriteBatch",
    ),
    Unused(
        "how often Apache asks ZooKeeper again: calls wait for one session timeout",
        "zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit metastoreImplClass "
        "metastoreMaxEntriesPerScan",
    ),
    Unused(
        "repairs are limited in bytes and in ledgers at a time, read in batches and always note the time",
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec inFlightReadEntryNumInLedgerChecker "
        "rereplicationEntryBatchSize zkReplicationTaskRateLimit storeSystemTimeAsLedgerUnderreplicatedMarkTime "
        "underreplicatedLedgerRecoveryGracePeriod",
    ),
    Unused(
        "settings of the client in Apache's AutoRecovery: ours has BK_... variables",
        "digestType passwd "
        "enableDigestTypeAutodetection ensemblePlacementPolicy reppDnsResolverClass networkTopologyScriptFileName "
        "networkTopologyScriptNumberArgs minNumRacksPerWriteQuorum enforceMinNumRacksPerWriteQuorum "
        "enforceMinNumFaultDomainsForWrite ignoreLocalNodeInPlacementPolicy minNumZonesPerWriteQuorum "
        "desiredNumZonesPerWriteQuorum enforceStrictZoneawarePlacement ledgerMetadataVersion "
        "storeSystemTimeAsLedgerCreationTime enableHealthCheck",
    ),
    Unused(
        "metrics and Apache's HTTP server: neither is there yet",
        "statsProviderClass sanityCheckMetricsEnabled limitStatsLogging prometheusStatsHttpPort "
        "prometheusStatsHttpEnable prometheusStatsHttpAddress prometheusStatsLatencyRolloverSeconds "
        "prometheusBasicStatsNumThreads codahaleStatsPrefix codahaleStatsOutputFrequencySeconds "
        "codahaleStatsGraphiteEndpoint codahaleStatsCSVEndpoint codahaleStatsSlf4jEndpoint codahaleStatsJmxEndpoint "
        "statsExport statsHttpPort httpServerPort httpServerHost httpServerClass httpServerTlsEnable "
        "httpServerKeyStorePath httpServerKeyStorePassword httpServerTrustStorePath httpServerTrustStorePassword",
    ),
    Unused(
        "TLS and SASL of the JVM: OpenSSL, and sasl_users_file in place of JAAS",
        "tlsProvider tlsTrustStorePasswordPath saslJaasBookieSectionName saslJaasAuditorSectionName",
    ),
    Unused(
        "formatters of Apache's shell: ids are decimal, and `bk ledger read` prints entries as they are",
        "ledgerIdFormatterClass entryFormatterClass",
    ),
)

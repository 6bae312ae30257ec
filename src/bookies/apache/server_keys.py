"""Keys of Apache's `bk_server.conf`, 4.16 to 4.18, and what becomes of each. `bk bookie run --conf` reads them.

Source: metadata 12, storage 11; the keys: ServerConfiguration and AbstractConfiguration of Apache's.
"""

from __future__ import annotations

from bookies.apache.table import (
    TLS_ROWS,
    Different,
    Level,
    Mapped,
    Row,
    Unused,
    disk_percent,
    kind_of_index,
    mebibytes,
    metadata_rows,
    milliseconds,
    names,
    natural,
    number,
    positive,
    seconds,
    switch,
    text,
)

_ADDRESS = "host, advertised_host"
_TLS = "only with tlsProviderFactoryClass"
_HTTP = "http_port"
_PACKAGE = "org.apache.bookkeeper."

SERVER: tuple[Row, ...] = (
    # -- identity and addresses
    Mapped("bookieId", "bookie_id", text),
    Mapped("bookiePort", "port", number),
    Mapped(
        "advertisedAddress",
        _ADDRESS,
        note="published; the bookie listens on all interfaces, including IPv6 if it is an IPv6 address",
    ),
    Mapped("listeningInterface", _ADDRESS, note="listens on, and publishes, the address of this interface"),
    Mapped("useHostNameAsBookieID", _ADDRESS, note="publishes the host name instead of its address"),
    Mapped("useShortHostName", _ADDRESS, note="publishes the host name up to the first dot"),
    Mapped("allowLoopback", _ADDRESS, note="without it a loopback address is refused"),
    Mapped("allowEphemeralPorts", "port", note="without it bookiePort=0 is refused"),
    # -- metadata, directories, limits of frames
    *metadata_rows("metadata URI"),
    Mapped("zkTimeout", "lease_ms", number),
    Mapped("journalDirectories", "journal_directories", names),
    Mapped("journalDirectory", "journal_directories", note="if journalDirectories is absent"),
    Mapped("ledgerDirectories", "ledger_directories", names),
    Mapped("indexDirectories", "index_directories", names),
    Mapped("allowMultipleDirsUnderSameDiskPartition", "allow_multiple_dirs_under_same_disk_partition", switch),
    Mapped("allowStorageExpansion", "allow_storage_expansion", switch),
    Mapped("persistBookieStatusEnabled", "persist_bookie_status", switch),
    Mapped("nettyMaxFrameSizeBytes", "frame_size_max", number),
    Mapped("maxBatchReadSize", "batch_read_size_max", number),
    Mapped(
        "ledgerStorageClass",
        "ledger_index",
        kind_of_index,
        "DbLedgerStorage: rocksdb; any other class: files",
    ),
    # -- journal, entry logs, indexes
    Mapped("journalMaxSizeMB", "journal_size_max", mebibytes),
    Mapped("journalMaxBackups", "journal_backups_max", number),
    Mapped("journalPreAllocSizeMB", "journal_preallocate_size", mebibytes),
    Mapped("journalAlignmentSize", "journal_alignment", number),
    Mapped("logSizeLimit", "entry_log_size_max", number),
    Mapped("pageSize", "index_page_size", number),
    Mapped("pageLimit", "index_cache_size", note="pages of pageSize, at least 1 MiB; 0 or less: our default"),
    Mapped("openFileLimit", "open_files_max", note="at least 8; 0 or less: our default"),
    Mapped("skipListSizeLimit", "write_cache_size", note="doubled: Apache's value is the size of each half"),
    Mapped("dbStorage_writeCacheMaxSizeMb", "write_cache_size", note="MiB; only with DbLedgerStorage"),
    Mapped("numReadWorkerThreads", "read_workers", note="1 to 64"),
    # -- collection and compaction
    Mapped("gcWaitTime", "gc_interval_ms", milliseconds),
    Mapped("gcMetadataOpRateLimit", "gc_metadata_rate", positive),
    Mapped("useTransactionalCompaction", "compaction", lambda value: "transactional" if switch(value) else "plain"),
    Mapped("minorCompactionThreshold", "minor_compaction_threshold", note="a fraction; 0 or less: no compaction"),
    Mapped("minorCompactionInterval", "minor_compaction_interval_ms", seconds, "seconds; 0 or less: no compaction"),
    Mapped("majorCompactionThreshold", "major_compaction_threshold", note="a fraction; 0 or less: no compaction"),
    Mapped("majorCompactionInterval", "major_compaction_interval_ms", seconds, "seconds; 0 or less: no compaction"),
    Mapped("isThrottleByBytes", "compaction_rate_size", note="true: compactionRateByBytes applies"),
    Mapped("compactionRateByBytes", "compaction_rate_size", note="only with isThrottleByBytes=true"),
    # -- disks
    Mapped("diskUsageThreshold", "disk_usage_threshold", disk_percent, "a fraction; at most 99 percent"),
    Mapped("diskUsageWarnThreshold", "disk_usage_warn_threshold", disk_percent, "a fraction; at most 99 percent"),
    Mapped("diskUsageLwmThreshold", "disk_usage_lwm_threshold", disk_percent, "a fraction; at most 99 percent"),
    Mapped("diskCheckInterval", "disk_check_interval_ms", number),
    Mapped("readOnlyModeOnAnyDiskFullEnabled", "read_only_on_any_disk_full", switch),
    Mapped("localScrubInterval", "scrub_period_ms", seconds, "seconds; 0: never"),
    # -- TLS and authentication
    Mapped(
        "tlsProviderFactoryClass",
        "tls_certificate",
        note="if set: TLS, configured by the keys below; other classes are refused",
    ),
    Mapped("tlsCertificatePath", "tls_certificate", note=_TLS),
    Mapped("tlsKeyStore", "tls_key", note=_TLS),
    Mapped("tlsKeyStoreType", "tls_key", note="PEM, JKS or PKCS12; a JKS or PKCS12 store becomes tls_certificate"),
    Mapped("tlsKeyStorePasswordPath", "tls_key_password_file", note=_TLS),
    Mapped("tlsTrustStore", "tls_authority", note=_TLS),
    Mapped("tlsTrustStoreType", "tls_authority", note="PEM, JKS or PKCS12"),
    Mapped("tlsTrustStorePasswordPath", "tls_authority_password_file", note="not for PEM"),
    Mapped("tlsClientAuthentication", "tls_client_certificates", note=_TLS),
    *TLS_ROWS,
    Mapped("bookieAuthProviderFactoryClass", "authentication", note="SASL or roles; other classes are refused"),
    Mapped("authorizedRoles", "authorized_roles", note="only with BookieAuthZFactory"),
    Mapped("saslJaasClientAllowedIds", "sasl_allowed_ids", note="only with SASLBookieAuthProviderFactory"),
    # -- auto-recovery
    Mapped("autoRecoveryDaemonEnabled", "auto_recovery", switch),
    Mapped(
        "lostBookieRecoveryDelay",
        "lost_bookie_delay_s",
        natural,
        note="s; a delay in the metadata store takes precedence",
    ),
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
    Mapped("replicationRateByBytes", "recovery_rate_size", natural, note="below 0: no limit"),
    # -- safety: reported as dangers
    Different(
        "journalSyncData",
        ("true", ""),
        "ignored: every add is synced to disk before it is acknowledged. To write without waiting, use the write flag "
        "DEFERRED_SYNC of a ledger, which the bookie supports",
        Level.DANGER,
    ),
    Different(
        "journalWriteData",
        ("true", ""),
        "ignored: every bookie has a journal here. Expect its writes on the journal's disk",
        Level.DANGER,
    ),
    Different(
        "skipReplayJournalInvalidRecord",
        ("false", ""),
        "ignored: an unreadable journal is never skipped, because its entries were acknowledged; "
        "`bk bookie repair` reports what is lost",
        Level.DANGER,
    ),
    Different(
        "forceReadOnlyBookie",
        ("false", ""),
        "only a running bookie can be made read-only: start it without the key, then `bk bookie read-only`, which "
        "persistBookieStatusEnabled=true keeps over restarts",
        is_refused=True,
    ),
    Different(
        "readOnlyModeEnabled",
        ("true", ""),
        "ignored: a bookie whose disks are full becomes read-only and does not stop, so its entries stay readable",
    ),
    Different(
        "dataIntegrityStampMissingCookies",
        ("false", ""),
        "ignored: a bookie that has lost directories starts only if `lost_directories` names them "
        "(docs/howto/replace-a-disk.md)",
        Level.DANGER,
    ),
    Different(
        "dataIntegrityChecking",
        ("false", ""),
        "ignored: a bookie always fetches what it has lost (docs/howto/replace-a-disk.md), and the scrub checks "
        "stored entries",
    ),
    Different(
        "permittedStartupUsers",
        ("",),
        "ignored: any user who may read the directories may start the bookie; let only the intended user own them",
        Level.DANGER,
    ),
    Different(
        "journalFormatVersionToWrite",
        ("6", ""),
        "ignored: journals are written in version 6, which Apache's bookies read from 4.16 on",
    ),
    Different(
        "fileInfoFormatVersionToWrite", ("1", "0", ""), "ignored: index files have version 1, as in Apache from 4.7 on"
    ),
    # -- done differently
    Different("verifyMetadataOnGC", ("true", "false", ""), "garbage collection always verifies"),
    Different(
        "gcOverreplicatedLedgerWaitTime",
        ("0", "86400000", ""),
        "surplus copies are collected only with --set gc_surplus_ms=MS (docs/howto/delete-surplus-copies.md)",
    ),
    Different(
        "entryLogPerLedgerEnabled",
        ("false", ""),
        "ignored: all ledgers share entry logs; entries are sorted by ledger when they are flushed",
    ),
    Different(
        "compactionRateByEntries",
        ("", "1000"),
        "compaction is limited in bytes: isThrottleByBytes=true and compactionRateByBytes",
    ),
    Different(
        "compactionRate", ("", "1000"), "compaction is limited in bytes: isThrottleByBytes=true, compactionRateByBytes"
    ),
    Mapped(
        "httpServerEnabled",
        _HTTP,
        note="true: an HTTP server on httpServerPort; its changes need users (users_file)",
    ),
    Mapped("httpServerPort", _HTTP, note="with httpServerEnabled=true; default 8080"),
    Different(
        "httpServerHost",
        ("", "127.0.0.1", "localhost"),
        "the HTTP server listens on 127.0.0.1: set http_host, users_file and http_tls to let other machines reach it",
    ),
    Different(
        "httpServerTlsEnable",
        ("false", ""),
        "the HTTP server needs PEM files: set http_tls with tls_certificate and tls_key",
        Level.DANGER,
    ),
    Different(
        "extraServerComponents",
        ("",),
        "Java classes cannot be loaded here: run a separate process instead",
        Level.DANGER,
    ),
    Different("disableServerSocketBind", ("false", ""), "ignored: a bookie is a separate process and has to listen"),
    Different("enableLocalTransport", ("false", ""), "ignored: clients always connect through TCP"),
    Different("sortedLedgerStorageEnabled", ("true", "false", ""), "entries are always sorted when they are flushed"),
    Different(
        "localConsistencyCheckOnStartup",
        ("false", ""),
        "ignored: `bk bookie repair DIR --dry-run` checks all files of a stopped bookie, the scrub those of a running "
        "one",
    ),
    Different(
        "minUsableSizeForHighPriorityWrites",
        ("",),
        "in percent here: --set disk_usage_priority_threshold=PERCENT (docs/howto/free-a-full-disk.md)",
    ),
    Different("minUsableSizeForEntryLogCreation", ("",), "in percent here: --set disk_usage_threshold=PERCENT"),
    Different("minUsableSizeForIndexFileCreation", ("",), "in percent here: --set disk_usage_threshold=PERCENT"),
    Different(
        "allowShadedLedgerManagerFactoryClass",
        ("true", "false", ""),
        "known names are accepted with and without prefix",
    ),
    Different(
        "shadedLedgerManagerFactoryClassPrefix",
        ("", "dlshade."),
        "ignored: LAYOUT may only have the prefix dlshade.",
    ),
    Different("ledgerManagerFactoryDisableClassCheck", ("",), "ignored: a URI that names another layout is refused"),
    Different(
        "registrationManagerClass",
        ("", f"{_PACKAGE}discover.zkregistrationmanager"),
        "Java classes cannot be loaded here: the metadata URI determines the store",
        Level.DANGER,
    ),
    Different(
        "enableStatistics", ("true", "false", ""), "metrics are kept with an HTTP server (httpServerEnabled=true)"
    ),
    # -- without meaning here
    Unused(
        "threads, queues and timers of Apache's server: one event loop serves all connections, limited in bytes",
        "numAddWorkerThreads numLongPollWorkerThreads numHighPriorityWorkerThreads numJournalCallbackThreads "
        "maxPendingReadRequestsPerThread maxPendingAddRequestsPerThread readWorkerThreadsThrottlingEnabled "
        "maxAddsInProgressLimit maxReadsInProgressLimit closeChannelOnResponseTimeout "
        "waitTimeoutOnResponseBackpressureMs requestTimerTickDurationMs requestTimerNumTicks serverNumAcceptorThreads "
        "serverNumIOThreads serverWriteBufferLowWaterMark serverWriteBufferHighWaterMark enableBusyWait "
        "preserveMdcForTaskExecution enableTaskExecutionStats bookieDeathWatchInterval journalQueueSize "
        "ignoreExtraServerComponentsStartupFailures",
    ),
    Unused(
        "sockets: small messages are never delayed, and connections are closed gracefully",
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
        "journal groups: the adds that arrive during a sync are the next group",
        "journalAdaptiveGroupWrites journalMaxGroupWaitMSec journalBufferedWritesThreshold "
        "journalBufferedEntriesThreshold journalFlushWhenQueueEmpty journalRemoveFromPageCache "
        "journalPageCacheFlushIntervalMSec journalChannelProvider journalReuseFiles",
    ),
    Unused(
        "flushing and files: checkpoints have their own settings (docs/reference/settings.md)",
        "flushInterval flushEntrylogBytes entryLogFilePreallocationEnabled numOfMemtableFlushThreads "
        "entrylogMapAccessExpiryTimeInSeconds maximumNumberOfActiveEntryLogs entryLogPerLedgerCounterLimitsMultFactor "
        "fileInfoCacheInitialCapacity fileInfoMaxIdleTime",
    ),
    Unused(
        "details of garbage collection: a log is compacted when its live share is below the threshold",
        "forceAllowCompaction isForceGCAllowWhenNoSpace minorCompactionMaxTimeMillis majorCompactionMaxTimeMillis "
        "compactionMaxOutstandingRequests entryLocationCompactionInterval gcOverreplicatedLedgerMaxConcurrentRequests "
        "gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath useTargetEntryLogSizeForGc localScrubRateLimit",
    ),
    Unused(
        "RocksDB's options are fixed here, and the page cache is the read cache",
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
        "Apache's ZooKeeper retries: our calls wait for one session timeout",
        "zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit metastoreImplClass "
        "metastoreMaxEntriesPerScan",
    ),
    Unused(
        "repairs are limited in bytes and in concurrent ledgers, read in batches, and always record the time",
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
        "metrics are always kept, and served at /metrics of the HTTP server (httpServerEnabled=true)",
        "statsProviderClass sanityCheckMetricsEnabled limitStatsLogging prometheusStatsHttpPort "
        "prometheusStatsHttpEnable prometheusStatsHttpAddress prometheusStatsLatencyRolloverSeconds "
        "prometheusBasicStatsNumThreads codahaleStatsPrefix codahaleStatsOutputFrequencySeconds "
        "codahaleStatsGraphiteEndpoint codahaleStatsCSVEndpoint codahaleStatsSlf4jEndpoint codahaleStatsJmxEndpoint "
        "statsExport statsHttpPort httpServerClass "
        "httpServerKeyStorePath httpServerKeyStorePassword httpServerTrustStorePath httpServerTrustStorePassword",
    ),
    Unused(
        "TLS and SASL of the JVM: replaced by OpenSSL and users_file",
        "tlsProvider saslJaasBookieSectionName saslJaasAuditorSectionName",
    ),
    Unused(
        "formatters of Apache's shell: ids are decimal, and `bk ledger read` prints entries unchanged",
        "ledgerIdFormatterClass entryFormatterClass",
    ),
)

"""Keys of Apache's client configuration, 4.16 to 4.18, and what becomes of each. `client_options` reads them.

Source: metadata 12; the keys: ClientConfiguration and AbstractConfiguration of Apache's.
"""

from __future__ import annotations

from bookies.apache.table import (
    TLS_ROWS,
    Different,
    Level,
    Mapped,
    Row,
    Unused,
    limit,
    metadata_rows,
    milliseconds,
    number,
    positive,
    seconds,
    switch,
)

_TLS = "only with tlsProviderFactoryClass"
CLIENT: tuple[Row, ...] = (
    *metadata_rows("uri"),
    Mapped("addEntryTimeoutSec", "add_timeout_ms", seconds, "seconds"),
    Mapped("readEntryTimeoutSec", "read_timeout_ms", seconds, "seconds"),
    Mapped("readTimeout", "read_timeout_ms", note="seconds; if readEntryTimeoutSec is absent"),
    Mapped("addEntryQuorumTimeoutSec", "add_quorum_timeout_ms", seconds, "seconds; below 0: never"),
    Mapped("clientConnectTimeoutMillis", "connect_timeout_ms", number),
    Mapped("nettyMaxFrameSizeBytes", "frame_size_max", number),
    Mapped("useV2WireProtocol", "wire", lambda value: "v2" if switch(value) else "v3", "true: v2, false: v3"),
    Mapped("firstSpeculativeReadTimeout", "hedge_delay_max_ms", note="ms; 0: hedged_reads=false"),
    Mapped("speculativeReadTimeout", "hedge_delay_max_ms", note="older form of firstSpeculativeReadTimeout"),
    Mapped("stickyReadSEnabled", "sticky_reads", switch),
    Mapped("enableDigestTypeAutodetection", "digest_autodetection", switch),
    Mapped("explicitLacInterval", "explicit_lac_interval_ms", milliseconds),
    Mapped("maxNumEnsembleChanges", "ensemble_changes_max", number),
    Mapped("delayEnsembleChange", "delay_ensemble_change", switch),
    Mapped("opportunisticStriping", "opportunistic_striping", switch),
    Mapped(
        "tlsProviderFactoryClass", "tls", note="if set: TLS, configured by the keys below; other classes are refused"
    ),
    Mapped("clientTrustStore", "tls_authority", note=_TLS),
    Mapped("clientTrustStoreType", "tls_authority", note="PEM, JKS or PKCS12"),
    Mapped("clientTrustStorePasswordPath", "tls_authority_password_file", note="not for PEM"),
    Mapped(
        "tlsClientAuthentication",
        "tls_certificate",
        note="true: the client presents tlsCertificatePath, with the key clientKeyStore",
    ),
    Mapped("tlsCertificatePath", "tls_certificate", note="only with tlsClientAuthentication=true"),
    Mapped("clientKeyStore", "tls_key", note="only with tlsClientAuthentication=true"),
    Mapped("clientKeyStoreType", "tls_key", note="PEM, JKS or PKCS12; a JKS or PKCS12 store becomes tls_certificate"),
    Mapped("clientKeyStorePasswordPath", "tls_key_password_file", note="only with tlsClientAuthentication=true"),
    Mapped("tlsHostnameVerificationEnabled", "tls_check_host_name", note="our default is true, Apache's is false"),
    *TLS_ROWS,
    Mapped("clientAuthProviderFactoryClass", "sasl_file", note="SASL: BK_SASL_FILE must name the credentials"),
    Different("clientRole", ("", "standard"), "ignored: the client always has the standard role"),
    Different(
        "throttle",
        ("0", ""),
        "ignored: memory_limit limits appends, in bytes",
    ),
    Mapped("ensemblePlacementPolicy", "placement", note="the class name determines random, rack, region or zone"),
    Mapped(
        "reppDnsResolverClass",
        "locations_script",
        note="ScriptBasedMapping; other classes cannot be loaded, which is reported",
    ),
    Mapped(
        "networkTopologyScriptFileName", "locations_script", note="the script gets registered host names, not addresses"
    ),
    Mapped("networkTopologyScriptNumberArgs", "locations_script_names_max", positive),
    Mapped("minNumRacksPerWriteQuorum", "racks_min", positive),
    Mapped("enforceMinNumRacksPerWriteQuorum", "placement_rule", note="true: placement becomes a rule"),
    Mapped("enforceMinNumFaultDomainsForWrite", "fault_domains_min", note="true: least number of racks or zones"),
    Mapped("minNumZonesPerWriteQuorum", "zones_min", positive),
    Mapped("desiredNumZonesPerWriteQuorum", "zones_desired", positive),
    Mapped("enforceStrictZoneawarePlacement", "placement_rule", note="only with the zone-aware policy; default true"),
    Mapped("diskWeightBasedPlacementEnabled", "disk_weights", switch),
    Mapped("bookieMaxMultipleForWeightBasedPlacement", "disk_weight_max", limit, "0 or less: no limit"),
    Mapped("getBookieInfoIntervalSeconds", "disk_weight_interval_ms", seconds, "seconds"),
    Mapped("reppRegionsToWrite", "regions_min", note="if set: reppMinimumRegionsForDurability applies"),
    Mapped("reppMinimumRegionsForDurability", "regions_min", note="only with reppRegionsToWrite; default 2"),
    Mapped("reorderReadSequenceEnabled", "near_reads", switch, "unhealthy bookies are last in any case"),
    Different("reppDisallowBookiePlacementInRegionFeatureName", ("",), "ignored: name the regions in locations_banned"),
    Different("digestType", ("", "crc32", "crc32c", "mac", "dummy"), "given when a ledger is created: digest="),
    Different("passwd", ("",), "ignored: give the password with each ledger: password=", Level.DANGER),
    Different("ledgerMetadataVersion", ("-1", "3", ""), "ignored: new ledgers have format 3; formats 1 to 3 are read"),
    Different(
        "storeSystemTimeAsLedgerCreationTime", ("true", "false", ""), "the creation time comes from the metadata store"
    ),
    Different(
        "bookieAddressResolverEnabled",
        ("true", ""),
        "ignored: addresses come from registrations, and from bookie ids that are addresses",
    ),
    Different(
        "registrationClientClass",
        ("",),
        "Java classes cannot be loaded here: the metadata URI determines the store",
        Level.DANGER,
    ),
    Unused(
        "threads, queues and timers of Apache's client: one event loop does all work, limited in bytes",
        "numWorkerThreads numIOThreads numChannelsPerBookie enableTaskExecutionStats taskExecutionWarnTimeMicros "
        "timeoutMonitorIntervalSec timeoutTaskIntervalMillis pcbcTimeoutTimerTickDurationMs pcbcTimeoutTimerNumTicks "
        "timeoutTimerTickDurationMs timeoutTimerNumTicks waitTimeoutOnBackpressureMs enableBusyWait "
        "preserveMdcForTaskExecution limitStatsLogging clientConnectBookieUnavailableLogThrottling",
    ),
    Unused(
        "sockets: the system's defaults apply, and small messages are never delayed",
        "clientTcpNoDelay clientSockKeepalive clientSendBufferSize clientReceiveBufferSize "
        "clientWriteBufferLowWaterMark clientWriteBufferHighWaterMark clientTcpUserTimeoutMillis tcpKeepIdle "
        "tcpKeepIntvl tcpKeepCnt",
    ),
    Unused(
        "the memory of a JVM",
        "nettyUsePooledBuffers allocatorPoolingPolicy allocatorPoolingConcurrency allocatorOutOfMemoryPolicy "
        "allocatorLeakDetectionPolicy allocatorExitOnOutOfMemory",
    ),
    Unused(
        "speculative reads: sent after each bookie's usual response time, at most hedge_delay_max_ms",
        "maxSpeculativeReadTimeout speculativeReadTimeoutBackoffMultiplier firstSpeculativeReadLACTimeout "
        "maxSpeculativeReadLACTimeout speculativeReadLACTimeoutBackoffMultiplier "
        "readReorderThresholdPendingRequests",
    ),
    Unused(
        "recovery and batches: recovery reads in parallel, and batch reads are used if bookies support them",
        "enableParallelRecoveryRead recoveryReadBatchSize recoveryBatchReadEnabled batchReadEnabled",
    ),
    Unused(
        "bookies to avoid: the client always tracks each bookie's response times and failures",
        "bookieHealthCheckEnabled bookieHealthCheckIntervalSeconds bookieErrorThresholdPerInterval "
        "bookieQuarantineTimeSeconds bookieQuarantineRatio enableBookieFailureTracking "
        "bookieFailureHistoryExpirationMSec ensemblePlacementPolicyOrderSlowBookies enableHealthCheck "
        "enableBookieAddressTracking",
    ),
    Unused(
        "details of placement: an unavailable bookie keeps its location, the client finds its own or gets location, "
        "and every choice follows the rules (docs/explanation/placement.md)",
        "networkTopologyStabilizePeriodSeconds ignoreLocalNodeInPlacementPolicy "
        "useHostnameResolveLocalNodePlacementPolicy reppEnableDurabilityEnforcementInReplace reppEnableValidation "
        "reppDisableDurabilityFeatureName ensembleRandomReadReordering "
        "getBookieInfoRetryIntervalSeconds getBookieInfoTimeoutSecs",
    ),
    Unused(
        "Apache's ZooKeeper calls: ours wait for one session timeout, which is 10 s",
        "zkTimeout zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit "
        "metastoreImplClass metastoreMaxEntriesPerScan allowShadedLedgerManagerFactoryClass "
        "shadedLedgerManagerFactoryClassPrefix ledgerManagerFactoryDisableClassCheck",
    ),
    Unused(
        "TLS of the JVM, and key stores of bookies",
        "tlsProvider startTLSTimeoutSecs tlsKeyStoreType tlsKeyStore "
        "tlsKeyStorePasswordPath tlsTrustStoreType tlsTrustStore tlsTrustStorePasswordPath saslJaasClientSectionName",
    ),
    Unused(
        "settings of Apache's servers, features and shell",
        "disableEnsembleChangeFeatureName permittedStartupUsers ledgerIdFormatterClass entryFormatterClass "
        "rereplicationEntryBatchSize replicationRateByBytes storeSystemTimeAsLedgerUnderreplicatedMarkTime",
    ),
)

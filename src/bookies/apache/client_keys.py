"""Keys of Apache's client configuration, 4.16 to 4.18, and what becomes of each. `client_options` reads them.

Source: experience 4, metadata 12; the keys: ClientConfiguration and AbstractConfiguration of Apache's.
"""

from __future__ import annotations

from bookies.apache.table import (
    Different,
    Level,
    Mapped,
    Row,
    Unused,
    limit,
    milliseconds,
    number,
    positive,
    seconds,
    switch,
)

_METADATA = "uri"
_TLS = "with tlsProviderFactoryClass only"
CLIENT: tuple[Row, ...] = (
    Mapped("metadataServiceUri", _METADATA, note="as it is"),
    Mapped("zkServers", _METADATA, note="without metadataServiceUri: zk+null://SERVERS/ROOT"),
    Mapped("zkLedgersRootPath", _METADATA, note="the path in it; /ledgers without"),
    Mapped("ledgerManagerFactoryClass", _METADATA, note="its class name decides the scheme: zk+flat and so on"),
    Mapped("ledgerManagerType", _METADATA, note="the same, older"),
    Mapped("zkEnableSecurity", _METADATA, note="true: the URI has to name a file with the identity, ?options=FILE"),
    Mapped("addEntryTimeoutSec", "add_timeout_ms", seconds, "seconds"),
    Mapped("readEntryTimeoutSec", "read_timeout_ms", seconds, "seconds"),
    Mapped("readTimeout", "read_timeout_ms", note="seconds; where there is no readEntryTimeoutSec"),
    Mapped("addEntryQuorumTimeoutSec", "add_quorum_timeout_ms", seconds, "seconds; less than 0: never"),
    Mapped("clientConnectTimeoutMillis", "connect_timeout_ms", number),
    Mapped("nettyMaxFrameSizeBytes", "frame_size_max", number),
    Mapped("useV2WireProtocol", "wire", lambda value: "v2" if switch(value) else "v3", "true: v2, false: v3"),
    Mapped("firstSpeculativeReadTimeout", "hedge_delay_max_ms", note="ms; 0: hedged_reads=false"),
    Mapped("speculativeReadTimeout", "hedge_delay_max_ms", note="the same, older"),
    Mapped("stickyReadSEnabled", "sticky_reads", switch),
    Mapped("enableDigestTypeAutodetection", "digest_autodetection", switch),
    Mapped("explicitLacInterval", "explicit_lac_interval_ms", milliseconds),
    Mapped("maxNumEnsembleChanges", "ensemble_changes_max", number),
    Mapped("delayEnsembleChange", "delay_ensemble_change", switch),
    Mapped("opportunisticStriping", "opportunistic_striping", switch),
    Mapped("tlsProviderFactoryClass", "tls", note="set: TLS as the keys below say; other classes are refused"),
    Mapped("clientTrustStore", "tls_authority", note=_TLS),
    Mapped(
        "clientTrustStoreType", "tls_authority", note="PEM; others are refused, with the command that converts them"
    ),
    Mapped("tlsClientAuthentication", "tls_certificate", note="true: tlsCertificatePath and clientKeyStore are shown"),
    Mapped("tlsCertificatePath", "tls_certificate", note="with tlsClientAuthentication=true only"),
    Mapped("clientKeyStore", "tls_key", note="with tlsClientAuthentication=true only"),
    Mapped("clientKeyStoreType", "tls_key", note="as clientTrustStoreType"),
    Mapped("clientKeyStorePasswordPath", "tls_key_password_file", note="with tlsClientAuthentication=true only"),
    Mapped("tlsHostnameVerificationEnabled", "tls_check_host_name", note="Apache does not check by default, we do"),
    Mapped("tlsEnabledProtocols", "tls_version_min", note="the oldest of them; before TLSv1.2: said"),
    Mapped("tlsEnabledCipherSuites", "tls_ciphers", note="said: OpenSSL has other names"),
    Mapped("tlsCertFilesRefreshDurationSeconds", "tls_reload_interval_ms", note="seconds; 0: our default"),
    Mapped("clientAuthProviderFactoryClass", "sasl_file", note="SASL: BK_SASL_FILE has to name the credentials"),
    Different("clientRole", ("", "standard"), "ignored: nothing is done as another role than an ordinary client's"),
    Different(
        "throttle",
        ("0", ""),
        "ignored: appends are limited in bytes: memory_limit",
    ),
    Mapped("ensemblePlacementPolicy", "placement", note="its class name decides: random, rack, region or zone"),
    Mapped("reppDnsResolverClass", "locations_script", note="ScriptBasedMapping; others cannot be loaded: said"),
    Mapped("networkTopologyScriptFileName", "locations_script", note="gets host names as registered, not addresses"),
    Mapped("networkTopologyScriptNumberArgs", "locations_script_names_max", positive),
    Mapped("minNumRacksPerWriteQuorum", "racks_min", positive),
    Mapped("enforceMinNumRacksPerWriteQuorum", "placement_rule", note="true: a rule"),
    Mapped("enforceMinNumFaultDomainsForWrite", "fault_domains_min", note="true: the least number of racks or zones"),
    Mapped("minNumZonesPerWriteQuorum", "zones_min", positive),
    Mapped("desiredNumZonesPerWriteQuorum", "zones_desired", positive),
    Mapped("enforceStrictZoneawarePlacement", "placement_rule", note="with the zone-aware policy; true without it"),
    Mapped("diskWeightBasedPlacementEnabled", "disk_weights", switch),
    Mapped("bookieMaxMultipleForWeightBasedPlacement", "disk_weight_max", limit, "0 or less: no limit"),
    Mapped("getBookieInfoIntervalSeconds", "disk_weight_interval_ms", seconds, "seconds"),
    Mapped("reppRegionsToWrite", "regions_min", note="set: reppMinimumRegionsForDurability counts"),
    Mapped("reppMinimumRegionsForDurability", "regions_min", note="with reppRegionsToWrite only; 2 without"),
    Different(
        "digestType", ("", "crc32", "crc32c", "mac", "dummy"), "the digest is named when a ledger is created: digest="
    ),
    Different("passwd", ("",), "ignored: the password is given with each ledger: password=", Level.DANGER),
    Different("ledgerMetadataVersion", ("-1", "3", ""), "ignored: new ledgers have format 3, and all three are read"),
    Different(
        "storeSystemTimeAsLedgerCreationTime", ("true", "false", ""), "the time of creation is the metadata store's"
    ),
    Different(
        "bookieAddressResolverEnabled",
        ("true", ""),
        "ignored: addresses come from registrations, and from ids that are",
    ),
    Different(
        "registrationClientClass", ("",), "Java classes cannot be loaded here: the metadata URI decides", Level.DANGER
    ),
    Unused(
        "threads, queues and timers of Apache's client: one loop does everything, bounded in bytes",
        "numWorkerThreads numIOThreads numChannelsPerBookie enableTaskExecutionStats taskExecutionWarnTimeMicros "
        "timeoutMonitorIntervalSec timeoutTaskIntervalMillis pcbcTimeoutTimerTickDurationMs pcbcTimeoutTimerNumTicks "
        "timeoutTimerTickDurationMs timeoutTimerNumTicks waitTimeoutOnBackpressureMs enableBusyWait "
        "preserveMdcForTaskExecution limitStatsLogging clientConnectBookieUnavailableLogThrottling",
    ),
    Unused(
        "sockets: the system's defaults, and small messages are never held back",
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
        "when late reads are asked elsewhere: after what each bookie usually takes, up to hedge_delay_max_ms",
        "maxSpeculativeReadTimeout speculativeReadTimeoutBackoffMultiplier firstSpeculativeReadLACTimeout "
        "maxSpeculativeReadLACTimeout speculativeReadLACTimeoutBackoffMultiplier reorderReadSequenceEnabled "
        "readReorderThresholdPendingRequests",
    ),
    Unused(
        "recovery and batches: recovery reads in parallel, and batch reads are used where bookies know them",
        "enableParallelRecoveryRead recoveryReadBatchSize recoveryBatchReadEnabled batchReadEnabled",
    ),
    Unused(
        "which bookies to avoid: the client watches what each one takes and fails, always",
        "bookieHealthCheckEnabled bookieHealthCheckIntervalSeconds bookieErrorThresholdPerInterval "
        "bookieQuarantineTimeSeconds bookieQuarantineRatio enableBookieFailureTracking "
        "bookieFailureHistoryExpirationMSec ensemblePlacementPolicyOrderSlowBookies enableHealthCheck "
        "enableBookieAddressTracking",
    ),
    Unused(
        "details of placement: a bookie stays where it was while it is away, the client says where it is with "
        "location, and every choice keeps the rules (docs/explanation/placement.md)",
        "networkTopologyStabilizePeriodSeconds ignoreLocalNodeInPlacementPolicy "
        "useHostnameResolveLocalNodePlacementPolicy reppEnableDurabilityEnforcementInReplace reppEnableValidation "
        "reppDisableDurabilityFeatureName reppDisallowBookiePlacementInRegionFeatureName ensembleRandomReadReordering "
        "getBookieInfoRetryIntervalSeconds getBookieInfoTimeoutSecs",
    ),
    Unused(
        "how Apache asks ZooKeeper: calls wait for one session timeout, which is 10 s",
        "zkTimeout zkRetryBackoffStartMs zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRequestRateLimit "
        "metastoreImplClass metastoreMaxEntriesPerScan allowShadedLedgerManagerFactoryClass "
        "shadedLedgerManagerFactoryClassPrefix ledgerManagerFactoryDisableClassCheck",
    ),
    Unused(
        "TLS of the JVM, and keys of bookies",
        "tlsProvider startTLSTimeoutSecs clientTrustStorePasswordPath tlsKeyStoreType tlsKeyStore "
        "tlsKeyStorePasswordPath tlsTrustStoreType tlsTrustStore tlsTrustStorePasswordPath saslJaasClientSectionName",
    ),
    Unused(
        "of Apache's servers, features and shell",
        "disableEnsembleChangeFeatureName permittedStartupUsers ledgerIdFormatterClass entryFormatterClass "
        "rereplicationEntryBatchSize replicationRateByBytes storeSystemTimeAsLedgerUnderreplicatedMarkTime",
    ),
)

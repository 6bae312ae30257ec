// Apache's etcd driver, told by lines on standard input what to do; one line of answer each.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.LedgerMetadataBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.LedgerIdGenerator;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.metadata.etcd.EtcdMetadataBookieDriver;
import org.apache.bookkeeper.metadata.etcd.EtcdMetadataClientDriver;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.versioning.LongVersion;
import org.apache.bookkeeper.versioning.Version;
import org.apache.bookkeeper.versioning.Versioned;

public class Etcd {
    private static RegistrationManager registration;
    private static LedgerManager ledgers;
    private static LedgerIdGenerator ids;
    private static EtcdMetadataClientDriver client;

    public static void main(String[] args) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setZkTimeout(4000);
        EtcdMetadataBookieDriver driver = new EtcdMetadataBookieDriver();
        driver.initialize(conf, NullStatsLogger.INSTANCE);
        registration = driver.createRegistrationManager();
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String answer;
            try {
                String[] words = line.split(" ");
                if (words[0].equals("connect")) {
                    ledgers = driver.getLedgerManagerFactory().newLedgerManager();
                    ids = driver.getLedgerManagerFactory().newLedgerIdGenerator();
                    ClientConfiguration clientConf = new ClientConfiguration();
                    clientConf.setMetadataServiceUri(args[0]);
                    client = new EtcdMetadataClientDriver();
                    client.initialize(clientConf, Executors.newScheduledThreadPool(1), NullStatsLogger.INSTANCE,
                        Optional.empty());
                    answer = "connected";
                } else {
                    answer = run(words);
                }
            } catch (Throwable e) {
                Throwable cause = e.getCause() != null ? e.getCause() : e;
                answer = "error " + cause.getClass().getSimpleName() + " " + cause.getMessage();
            }
            System.out.println(answer);
        }
        Runtime.getRuntime().halt(0);
    }

    private static String run(String[] words) throws Exception {
        switch (words[0]) {
            case "init":
                return String.valueOf(registration.initNewCluster());
            case "nuke":
                return String.valueOf(registration.nukeExistingCluster());
            case "instance":
                return registration.getClusterInstanceId();
            case "cookie":
                registration.writeCookie(BookieId.parse(words[1]),
                    new Versioned<>(words[2].getBytes(StandardCharsets.UTF_8), Version.NEW));
                return "written";
            case "read-cookie":
                return new String(registration.readCookie(BookieId.parse(words[1])).getValue(), StandardCharsets.UTF_8);
            case "remove-cookie":
                BookieId bookie = BookieId.parse(words[1]);
                registration.removeCookie(bookie, registration.readCookie(bookie).getVersion());
                return "removed";
            case "register":
                registration.registerBookie(BookieId.parse(words[1]), words[2].equals("readonly"),
                    BookieServiceInfo.NO_INFO.get());
                return "registered";
            case "registered":
                return String.valueOf(registration.isBookieRegistered(BookieId.parse(words[1])));
            case "id":
                CompletableFuture<String> id = new CompletableFuture<>();
                ids.generateLedgerId((rc, value) -> id.complete(rc == 0 ? String.valueOf(value) : "error " + rc));
                return get(id);
            case "create":
                return show(get(ledgers.createLedgerMetadata(Long.parseLong(words[1]), open(Long.parseLong(words[1])))));
            case "read":
                return show(get(ledgers.readLedgerMetadata(Long.parseLong(words[1]))));
            case "close": {
                long ledger = Long.parseLong(words[1]);
                Versioned<LedgerMetadata> found = get(ledgers.readLedgerMetadata(ledger));
                LedgerMetadata closed = LedgerMetadataBuilder.from(found.getValue())
                    .withClosedState().withLastEntryId(9).withLength(99).build();
                return show(get(ledgers.writeLedgerMetadata(ledger, closed, found.getVersion())));
            }
            case "remove":
                get(ledgers.removeLedgerMetadata(Long.parseLong(words[1]), Version.ANY));
                return "removed";
            case "list": {
                LedgerManager.LedgerRangeIterator ranges = ledgers.getLedgerRanges(0);
                List<Long> all = new ArrayList<>();
                while (ranges.hasNext()) {
                    all.addAll(ranges.next().getLedgers());
                }
                return all.toString();
            }
            case "writable":
                return new TreeSet<>(names(get(client.getRegistrationClient().getWritableBookies()))).toString();
            case "readonly":
                return new TreeSet<>(names(get(client.getRegistrationClient().getReadOnlyBookies()))).toString();
            default:
                return "error unknown command";
        }
    }

    private static List<String> names(Versioned<java.util.Set<BookieId>> bookies) {
        List<String> names = new ArrayList<>();
        bookies.getValue().forEach(bookie -> names.add(bookie.toString()));
        return names;
    }

    private static LedgerMetadata open(long ledger) {
        return LedgerMetadataBuilder.create().withId(ledger).withEnsembleSize(1).withWriteQuorumSize(1)
            .withAckQuorumSize(1).withDigestType(DigestType.CRC32C).withPassword("p".getBytes())
            .newEnsembleEntry(0L, Collections.singletonList(BookieId.parse("bk-a:3181"))).build();
    }

    private static String show(Versioned<LedgerMetadata> found) throws Exception {
        StringBuilder hex = new StringBuilder();
        for (byte each : new LedgerMetadataSerDe().serialize(found.getValue())) {
            hex.append(String.format("%02x", each));
        }
        return ((LongVersion) found.getVersion()).getLongVersion() + " " + hex;
    }

    private static <T> T get(CompletableFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }
}

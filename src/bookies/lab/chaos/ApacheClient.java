// A client of Apache's in `bk chaos --namespaces --apache-clients N`: a writer, a recoverer or a reader, as in
// chaos_client.py. Runs until its standard input ends. What it does is in its history, see chaos_history.py. Its operations
// have no bound: what Apache's client does late is counted, and is no violation.
//
// Its parameters are one JSON object: metadata, bookies, least_ack_quorum, role, history, seed.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public class ApacheClient {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PASSWORD = {};
    private static final String LABEL = "chaos";
    private static final int RECENT = 12;
    private static final int READ_AT_ONCE = 200;
    private static final double UNBOUNDED_S = 1e6;
    private static final DigestType[] DIGESTS = {DigestType.CRC32C, DigestType.CRC32, DigestType.MAC};
    private static final int[][] QUORUMS = {
        {3, 3, 2}, {3, 3, 2}, {3, 2, 2}, {3, 2, 1}, {1, 1, 1}, {4, 3, 2}, {5, 3, 3}, {2, 2, 2}
    };
    private static final int[] GOALS = {0, 20, 200, 1000, 5000};
    private static final int[] COUNTS = {1, 1, 5, 50, 300};

    private final JsonNode parameters;
    private final FileOutputStream history;
    private final Random random;
    private final BookKeeper client;
    private int operations;
    private volatile boolean isStopping;

    private ApacheClient(JsonNode parameters) throws Exception {
        this.parameters = parameters;
        history = new FileOutputStream(parameters.get("history").asText(), true);
        random = new Random(parameters.get("seed").asText().hashCode());
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(parameters.get("metadata").asText());
        conf.setAddEntryTimeout(2).setReadEntryTimeout(2).setUseV2WireProtocol(random.nextInt(3) > 0);
        conf.setZkTimeout(4_000);
        client = attempt("connect", () -> BookKeeper.newBuilder(conf).build());
    }

    public static void main(String[] arguments) throws Exception {
        ApacheClient client = new ApacheClient(JSON.readTree(arguments[0]));
        Thread input = new Thread(client::awaitEnd);
        input.setDaemon(true);
        input.start();
        while (client.client != null && !client.isStopping) {
            client.act();
        }
        Runtime.getRuntime().halt(client.client == null && !client.isStopping ? 1 : 0);
    }

    private void awaitEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            // The pipe is gone, and so is its owner.
        }
        isStopping = true;
        try {
            Thread.sleep(40_000);
        } catch (InterruptedException error) {
            // It ends now.
        }
        Runtime.getRuntime().halt(0);  // An operation that hangs does not keep the process.
    }

    private void act() {
        switch (parameters.get("role").asText()) {
            case "a-writer" -> write();
            case "a-recoverer" -> recover();
            default -> read();
        }
    }

    // -- history --

    private synchronized void note(String event, Object... facts) {
        ObjectNode line = JSON.createObjectNode().put("e", event);
        for (int i = 0; i < facts.length; i += 2) {
            line.putPOJO((String) facts[i], facts[i + 1]);
        }
        try {
            history.write((JSON.writeValueAsString(line) + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Run one operation. Null if it fails. */
    private <T> T attempt(String operation, Callable<T> work) {
        String kind = "Apache: " + operation;
        int number = ++operations;
        double begin = System.nanoTime() / 1e9;
        note("begin", "op", number, "kind", kind, "bound_s", UNBOUNDED_S, "t", begin);
        String outcome = "ok";
        try {
            return work.call();
        } catch (Exception error) {
            Throwable cause = error;
            while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                    && cause.getCause() != null) {
                cause = cause.getCause();
            }
            outcome = cause.getClass().getSimpleName();
            return null;
        } finally {
            double now = System.nanoTime() / 1e9;
            note("end", "op", number, "kind", kind, "outcome", outcome, "s", now - begin, "t", now);
        }
    }

    // -- roles --

    private void write() {
        List<int[]> able = new ArrayList<>();
        for (int[] quorums : QUORUMS) {
            if (quorums[0] <= parameters.get("bookies").asInt()
                    && quorums[2] >= parameters.get("least_ack_quorum").asInt()) {
                able.add(quorums);
            }
        }
        int[] quorums = able.get(random.nextInt(able.size()));
        DigestType digest = DIGESTS[random.nextInt(DIGESTS.length)];
        WriteHandle ledger = attempt("create", () -> client.newCreateLedgerOp()
                .withEnsembleSize(quorums[0]).withWriteQuorumSize(quorums[1]).withAckQuorumSize(quorums[2])
                .withDigestType(digest).withPassword(PASSWORD)
                .withCustomMetadata(Map.of(LABEL, "1".getBytes(StandardCharsets.UTF_8)))
                .execute().get());
        if (ledger == null) {
            pause(0.3);
            return;
        }
        int goal = GOALS[random.nextInt(GOALS.length)];
        for (long following = 0; following < goal && !isStopping;) {
            int count = COUNTS[random.nextInt(COUNTS.length)];
            if (!append(ledger, following, count)) {
                break;
            }
            following += count;
            pause(0.03);
        }
        if (random.nextDouble() < 0.6 && attempt("close", () -> ledger.closeAsync().thenApply(nothing -> true).get()) != null) {
            noteEnd(ledger.getLedgerMetadata(), ledger.getId());
        }
    }

    private boolean append(WriteHandle ledger, long first, int count) {
        long ledgerId = ledger.getId();
        note("started", "ledger", ledgerId, "last", first + count - 1);
        List<CompletableFuture<Long>> pending = new ArrayList<>();
        for (long entryId = first; entryId < first + count; entryId++) {
            pending.add(ledger.appendAsync(payload(ledgerId, entryId)));
        }
        for (int i = 0; i < count; i++) {
            long entryId = first + i;
            int place = i;
            Long given = attempt("append", () -> pending.get(place).get());
            if (given == null) {
                return false;
            }
            note("acked", "ledger", ledgerId, "first", entryId, "last", entryId);
            if (given != entryId) {
                note("wrong", "text", "ledger " + ledgerId + ": entry " + entryId + " was acknowledged as " + given);
            }
        }
        return true;
    }

    private void recover() {
        pause(1.0);
        boolean wantsOpen = random.nextDouble() < 0.8;
        LedgerMetadata chosen = choose(wantsOpen);
        if (chosen == null) {
            return;
        }
        ReadHandle ledger = open("recover", chosen.getLedgerId(), true);
        if (ledger != null) {
            noteEnd(ledger.getLedgerMetadata(), ledger.getId());
            attempt("close", () -> ledger.closeAsync().thenApply(nothing -> true).get());
        }
    }

    private void read() {
        pause(0.3);
        LedgerMetadata chosen = choose(false);
        ReadHandle ledger = chosen == null ? null : open("open", chosen.getLedgerId(), false);
        if (ledger == null) {
            return;
        }
        long ledgerId = ledger.getId();
        long end = ledger.getLastAddConfirmed();
        for (long first = random.nextBoolean() ? 0 : Math.max(0, end - 100); first <= end && !isStopping;) {
            long from = first;
            long last = Math.min(end, first + READ_AT_ONCE - 1);
            Boolean isRead = attempt("read", () -> {
                try (LedgerEntries entries = ledger.read(from, last)) {
                    for (LedgerEntry entry : entries) {
                        if (!Arrays.equals(entry.getEntryBytes(), payload(ledgerId, entry.getEntryId()))) {
                            note("wrong", "text", "ledger " + ledgerId + ": entry " + entry.getEntryId()
                                    + " is not what was written");
                        }
                    }
                }
                return true;
            });
            if (isRead == null) {
                break;
            }
            note("seen", "ledger", ledgerId, "last", last);
            first = last + 1;
        }
        attempt("close", () -> ledger.closeAsync().thenApply(nothing -> true).get());
    }

    private ReadHandle open(String operation, long ledgerId, boolean recovers) {
        return attempt(operation, () -> client.newOpenLedgerOp()
                .withLedgerId(ledgerId).withPassword(PASSWORD).withRecovery(recovers).execute().get());
    }

    /** A random ledger of the run, mostly one of the newest. */
    private LedgerMetadata choose(boolean wantsOpen) {
        return attempt("list", () -> {
            List<Long> ids = new ArrayList<>();
            client.newListLedgersOp().execute().get().toIterable().forEach(ids::add);
            ids.sort(null);
            int count = random.nextDouble() < 0.2 ? ids.size() : Math.min(RECENT, ids.size());
            List<LedgerMetadata> able = new ArrayList<>();
            for (long ledgerId : ids.subList(ids.size() - count, ids.size())) {
                LedgerMetadata metadata = client.getLedgerMetadata(ledgerId).get();
                if (metadata.getCustomMetadata().containsKey(LABEL) && !(wantsOpen && metadata.isClosed())) {
                    able.add(metadata);
                }
            }
            return able.isEmpty() ? null : able.get(random.nextInt(able.size()));
        });
    }

    private void noteEnd(LedgerMetadata metadata, long ledgerId) {
        if (!metadata.isClosed()) {
            note("wrong", "text", "ledger " + ledgerId + " was ended, but it is not sealed");
            return;
        }
        note("end_of", "ledger", ledgerId, "last", metadata.getLastEntryId(), "length", metadata.getLength());
    }

    private void pause(double meanS) {
        double seconds = -meanS * Math.log(1 - random.nextDouble());
        for (double end = System.nanoTime() / 1e9 + seconds; System.nanoTime() / 1e9 < end && !isStopping;) {
            try {
                Thread.sleep(10);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    /** The content of an entry, as in chaos_history.py. */
    private static byte[] payload(long ledgerId, long entryId) {
        CRC32 crc = new CRC32();
        crc.update((ledgerId + " " + entryId).getBytes(StandardCharsets.US_ASCII));
        long number = crc.getValue();
        int size = (int) (number % 300);
        if (number % 997 == 0) {
            size = (int) (100_000 + number % 100_000);
        } else if (number % 61 == 0) {
            size = (int) (4_000 + number % 5_000);
        }
        byte[] word = (ledgerId + "." + entryId + " ").getBytes(StandardCharsets.US_ASCII);
        byte[] payload = new byte[size];
        for (int i = 0; i < size; i++) {
            payload[i] = word[i % word.length];
        }
        return payload;
    }
}

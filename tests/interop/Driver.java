// Apache's Java client behind lines of JSON: a command a line on standard input, an answer a line on standard output, in
// the order in which they are done. Handles stay open. tests/interop/driver.py is the same with our client.
//
// A command has "id", which comes back in its answer; "do", the operation; "uri" and "wire" ("v2" or "v3"), the client that
// does it; and its arguments. An answer has "ok" and results, or "error", the name of a BKException, and "message".

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.CreateBuilder;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;

public class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PATTERN = new byte[1 << 17];
    private static final int OFFSETS = 65521;
    private static final int READ_AT_ONCE = 500;

    static {
        for (int i = 0; i < PATTERN.length; i++) {
            PATTERN[i] = (byte) (7 * i + (i >> 8));
        }
    }

    /** An open ledger, and how far its writer is. */
    private static class Writer {
        final LedgerHandle handle;
        volatile long next;
        volatile long confirmed = -1;
        volatile boolean isStopped;
        volatile Throwable failure;

        Writer(LedgerHandle handle) {
            this.handle = handle;
        }
    }

    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<Integer, Writer> writers = new ConcurrentHashMap<>();
    private final AtomicInteger numbers = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        Driver driver = new Driver();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode command = JSON.readTree(line);
            threads.execute(() -> driver.answer(command));
        }
        // Open ledgers stay open, as after a crash of their writer.
        Runtime.getRuntime().halt(0);
    }

    private void answer(JsonNode command) {
        ObjectNode result = JSON.createObjectNode();
        result.put("ok", true);
        try {
            run(command, result);
        } catch (Throwable error) {
            Throwable cause = causeOf(error);
            result.put("ok", false);
            result.put("error", nameOf(cause));
            result.put("message", String.valueOf(cause.getMessage()));
        }
        result.put("id", command.get("id").asInt());
        synchronized (System.out) {
            System.out.println(result);
            System.out.flush();
        }
    }

    private static Throwable causeOf(Throwable error) {
        boolean isWrapped = error instanceof ExecutionException || error instanceof CompletionException
            || error instanceof InvocationTargetException;
        return isWrapped && error.getCause() != null ? causeOf(error.getCause()) : error;
    }

    private static String nameOf(Throwable error) {
        return error.getClass().getSimpleName();
    }

    private void run(JsonNode command, ObjectNode result) throws Exception {
        switch (command.get("do").asText()) {
            case "init": init(command, result); break;
            case "create": create(command, result); break;
            case "append": append(command, result); break;
            case "stop": writer(command).isStopped = true; break;
            case "progress": progress(command, result); break;
            case "write": write(command, result); break;
            case "force": writer(command).handle.force().get(); progress(command, result); break;
            case "close": writer(command).handle.close(); progress(command, result); break;
            case "read": read(command, result); break;
            case "batch_read": batchRead(command, result); break;
            case "lac": lac(command, result); break;
            case "long_poll": longPoll(command, result); break;
            case "tail": tail(command, result); break;
            case "recover": recover(command, result); break;
            case "delete": client(command).deleteLedger(command.get("ledger").asLong()); break;
            case "list": list(command, result); break;
            case "metadata": metadata(command, result); break;
            default: throw new IllegalArgumentException(command.toString());
        }
    }

    private synchronized BookKeeper client(JsonNode command) throws Exception {
        String uri = command.get("uri").asText();
        String wire = command.get("wire").asText();
        BookKeeper client = clients.get(uri + wire);
        if (client == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(uri);
            conf.setUseV2WireProtocol(wire.equals("v2"));
            conf.setExplictLacInterval(100);
            conf.setNumWorkerThreads(2);
            conf.setProperty("numIOThreads", 1);
            JsonNode settings = command.get("settings");
            if (settings != null) {
                settings.fields().forEachRemaining(each -> conf.setProperty(each.getKey(), each.getValue().asText()));
            }
            client = new BookKeeper(conf);
            clients.put(uri + wire, client);
        }
        return client;
    }

    private Writer writer(JsonNode command) {
        return writers.get(command.get("handle").asInt());
    }

    private static byte[] password(JsonNode command) {
        return text(command, "password", "").getBytes(StandardCharsets.UTF_8);
    }

    private static String text(JsonNode command, String name, String otherwise) {
        return command.has(name) ? command.get(name).asText() : otherwise;
    }

    private static long number(JsonNode command, String name, long otherwise) {
        return command.has(name) ? command.get(name).asLong() : otherwise;
    }

    private static BookKeeper.DigestType digest(JsonNode command) {
        return BookKeeper.DigestType.valueOf(digestName(command));
    }

    private static String digestName(JsonNode command) {
        String name = text(command, "digest", "crc32c");
        return name.equals("hmac") ? "MAC" : name.equals("none") ? "DUMMY" : name.toUpperCase();
    }

    private static byte[] payload(long ledger, long entry, int size) {
        int offset = (int) ((131 * ledger + 31 * entry) % OFFSETS);
        return Arrays.copyOfRange(PATTERN, offset, offset + size);
    }

    private static int size(JsonNode command, long entry) {
        JsonNode sizes = command.get("sizes");
        return sizes.get((int) (entry % sizes.size())).asInt();
    }

    private static boolean isGood(JsonNode command, long entry, byte[] data) {
        return data.length == size(command, entry)
            && Arrays.equals(data, payload(command.get("ledger").asLong(), entry, data.length));
    }

    private void init(JsonNode command, ObjectNode result) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri(command.get("uri").asText());
        if (!BookKeeperAdmin.initNewCluster(conf)) {
            throw new IllegalStateException("there is a cluster");
        }
    }

    private void create(JsonNode command, ObjectNode result) throws Exception {
        Map<String, byte[]> labels = new HashMap<>();
        if (command.has("labels")) {
            command.get("labels").fields().forEachRemaining(
                each -> labels.put(each.getKey(), each.getValue().asText().getBytes(StandardCharsets.UTF_8)));
        }
        CreateBuilder builder = client(command).newCreateLedgerOp()
            .withEnsembleSize(command.get("ensemble").asInt())
            .withWriteQuorumSize(command.get("write_quorum").asInt())
            .withAckQuorumSize(command.get("ack_quorum").asInt())
            .withDigestType(DigestType.valueOf(digestName(command)))
            .withPassword(password(command))
            .withCustomMetadata(labels);
        if (command.path("deferred_sync").asBoolean()) {
            builder = builder.withWriteFlags(WriteFlag.DEFERRED_SYNC);
        }
        LedgerHandle handle;
        if (command.has("ledger")) {
            handle = (LedgerHandle) builder.makeAdv().withLedgerId(command.get("ledger").asLong()).execute().get();
        } else if (command.path("advanced").asBoolean()) {
            handle = (LedgerHandle) builder.makeAdv().execute().get();
        } else {
            handle = (LedgerHandle) builder.execute().get();
        }
        int number = numbers.incrementAndGet();
        writers.put(number, new Writer(handle));
        result.put("handle", number);
        result.put("ledger", handle.getId());
    }

    /** Append "count" entries, "window" of them at a time, until one fails or "stop" comes. */
    private void append(JsonNode command, ObjectNode result) throws Exception {
        Writer writer = writer(command);
        int window = (int) number(command, "window", 200);
        long pause = number(command, "pause_ms", 0);
        long count = command.get("count").asLong();
        Semaphore room = new Semaphore(window);
        writer.isStopped = false;
        for (long i = 0; i < count && !writer.isStopped && writer.failure == null; i++) {
            room.acquire();
            long entry = writer.next++;
            ByteBuf data = Unpooled.wrappedBuffer(payload(writer.handle.getId(), entry, size(command, entry)));
            CompletableFuture<Long> sent = writer.handle instanceof WriteAdvHandle
                ? ((WriteAdvHandle) writer.handle).writeAsync(entry, data) : writer.handle.appendAsync(data);
            sent.whenComplete((id, error) -> {
                if (error != null && writer.failure == null) {
                    writer.failure = causeOf(error);
                } else if (error == null) {
                    writer.confirmed = Math.max(writer.confirmed, id);
                }
                room.release();
            });
            if (pause > 0) {
                Thread.sleep(pause);
            }
        }
        room.acquire(window);
        progress(command, result);
    }

    private void progress(JsonNode command, ObjectNode result) {
        Writer writer = writer(command);
        result.put("confirmed", writer.confirmed);
        result.put("lac", writer.handle.getLastAddConfirmed());
        result.put("length", writer.handle.getLength());
        result.put("failure", writer.failure == null ? "" : nameOf(writer.failure));
    }

    /** Entries with "ids" of the caller's, all under way at once, in that order. */
    private void write(JsonNode command, ObjectNode result) throws Exception {
        Writer writer = writer(command);
        List<CompletableFuture<Long>> sent = new ArrayList<>();
        for (JsonNode each : command.get("ids")) {
            byte[] data = payload(writer.handle.getId(), each.asLong(), size(command, each.asLong()));
            sent.add(((WriteAdvHandle) writer.handle).writeAsync(each.asLong(), Unpooled.wrappedBuffer(data)));
        }
        for (CompletableFuture<Long> each : sent) {
            each.get();
        }
        progress(command, result);
    }

    private LedgerHandle open(JsonNode command) throws Exception {
        return client(command).openLedgerNoRecovery(command.get("ledger").asLong(), digest(command), password(command));
    }

    private static void describe(LedgerHandle handle, ObjectNode result) {
        result.put("lac", handle.getLastAddConfirmed());
        result.put("length", handle.getLength());
        result.put("sealed", handle.isClosed());
    }

    private void read(JsonNode command, ObjectNode result) throws Exception {
        try (LedgerHandle handle = open(command)) {
            describe(handle, result);
            long first = number(command, "first", 0);
            long last = number(command, "last", handle.getLastAddConfirmed());
            boolean isUnconfirmed = command.path("unconfirmed").asBoolean();
            int good = 0;
            int count = 0;
            long length = 0;
            for (long at = first; at <= last; at += READ_AT_ONCE) {
                long end = Math.min(last, at + READ_AT_ONCE - 1);
                CompletableFuture<LedgerEntries> found =
                    isUnconfirmed ? handle.readUnconfirmedAsync(at, end) : handle.readAsync(at, end);
                try (LedgerEntries entries = found.get()) {
                    for (LedgerEntry each : entries) {
                        count++;
                        good += isGood(command, each.getEntryId(), each.getEntryBytes()) ? 1 : 0;
                        length = each.getLength();
                    }
                }
            }
            result.put("count", count);
            result.put("good", good);
            result.put("entry_length", length);
        }
    }

    /** By reflection: Apache has it since 4.17. */
    @SuppressWarnings("unchecked")
    private void batchRead(JsonNode command, ObjectNode result) throws Exception {
        try (LedgerHandle handle = open(command)) {
            int good = 0;
            long next = number(command, "first", 0);
            int requests = 0;
            while (next <= handle.getLastAddConfirmed()) {
                Enumeration<org.apache.bookkeeper.client.LedgerEntry> found =
                    (Enumeration<org.apache.bookkeeper.client.LedgerEntry>) LedgerHandle.class
                        .getMethod("batchReadEntries", long.class, int.class, long.class)
                        .invoke(handle, next, command.get("count_max").asInt(), command.get("size_max").asLong());
                requests++;
                long before = next;
                while (found.hasMoreElements()) {
                    org.apache.bookkeeper.client.LedgerEntry each = found.nextElement();
                    good += each.getEntryId() == next && isGood(command, next, each.getEntry()) ? 1 : 0;
                    next = each.getEntryId() + 1;
                }
                if (next == before) {
                    throw new IllegalStateException("an empty batch at " + next);
                }
            }
            result.put("count", next - number(command, "first", 0));
            result.put("good", good);
            result.put("requests", requests);
        }
    }

    private void lac(JsonNode command, ObjectNode result) throws Exception {
        try (LedgerHandle handle = open(command)) {
            describe(handle, result);
            result.put("read", handle.readLastAddConfirmed());
            if (command.path("explicit").asBoolean()) {
                result.put("explicit", handle.readExplicitLastConfirmed());
            }
        }
    }

    private void longPoll(JsonNode command, ObjectNode result) throws Exception {
        long entry = command.get("entry").asLong();
        try (LedgerHandle handle = open(command);
                LastConfirmedAndEntry found = handle.readLastAddConfirmedAndEntryAsync(
                    entry, command.get("wait_ms").asLong(), command.path("parallel").asBoolean()).get()) {
            result.put("lac", found.getLastAddConfirmed());
            boolean isThere = found.hasEntry() && found.getEntry() != null;
            result.put("found", isThere);
            result.put("good", isThere && isGood(command, entry, found.getEntry().getEntryBytes()));
        }
    }

    /** Entries as they come, up to the one called "until": by long polls, in v2, which has none, by asking again. */
    private void tail(JsonNode command, ObjectNode result) throws Exception {
        long until = command.get("until").asLong();
        boolean isV2 = command.get("wire").asText().equals("v2");
        long next = 0;
        int good = 0;
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        try (LedgerHandle handle = open(command)) {
            while (next <= until) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("nothing behind entry " + (next - 1) + " for too long");
                }
                long last = isV2 ? handle.readLastAddConfirmed()
                    : handle.readLastAddConfirmedAndEntryAsync(next, 1000, false).get().getLastAddConfirmed();
                if (last < next) {
                    Thread.sleep(isV2 ? 20 : 0);
                    continue;
                }
                try (LedgerEntries entries = handle.readAsync(next, Math.min(last, next + READ_AT_ONCE)).get()) {
                    for (LedgerEntry each : entries) {
                        good += isGood(command, next, each.getEntryBytes()) ? 1 : 0;
                        next++;
                    }
                }
            }
        }
        result.put("count", next);
        result.put("good", good);
    }

    private void recover(JsonNode command, ObjectNode result) throws Exception {
        long ledger = command.get("ledger").asLong();
        try (LedgerHandle handle = client(command).openLedger(ledger, digest(command), password(command))) {
            describe(handle, result);
        }
    }

    private void list(JsonNode command, ObjectNode result) throws Exception {
        ArrayNode ids = result.putArray("ledgers");
        BookKeeperAdmin admin = new BookKeeperAdmin(client(command), new ClientConfiguration());
        for (Long each : admin.listLedgers()) {
            ids.add(each.longValue());
        }
    }

    private void metadata(JsonNode command, ObjectNode result) throws Exception {
        LedgerMetadata record =
            client(command).getLedgerManager().readLedgerMetadata(command.get("ledger").asLong()).get().getValue();
        result.put("state", record.getState().name());
        result.put("last", record.isClosed() ? record.getLastEntryId() : -1);
        result.put("length", record.isClosed() ? record.getLength() : 0);
        result.put("ensemble", record.getEnsembleSize());
        result.put("write_quorum", record.getWriteQuorumSize());
        result.put("ack_quorum", record.getAckQuorumSize());
        result.put("digest", record.getDigestType().name());
        ObjectNode labels = result.putObject("labels");
        record.getCustomMetadata().forEach((name, value) -> labels.put(name, new String(value, StandardCharsets.UTF_8)));
        ObjectNode fragments = result.putObject("fragments");
        record.getAllEnsembles().forEach((first, ensemble) -> {
            ArrayNode names = fragments.putArray(first.toString());
            for (BookieId each : ensemble) {
                names.add(each.toString());
            }
        });
    }
}

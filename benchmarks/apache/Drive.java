import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Load with Apache's client, in the words and lines of benchmarks/suite/drive.py: events "ready", "begin" and "end" as
 * they happen, then "result". Whoever started it watches processes between "begin" and "end".
 */
public class Drive {
    private static final int SAMPLES_MAX = 8_000_000;
    private static final int PAYLOADS = 1 << 20;
    private static final byte[] PASSWORD = new byte[0];

    private final Map<String, String> given = new HashMap<>();
    private final int[] latencies = new int[SAMPLES_MAX];
    private final AtomicInteger samples = new AtomicInteger();
    private final AtomicInteger errors = new AtomicInteger();
    private final AtomicLong entries = new AtomicLong();
    private final AtomicLong bytes = new AtomicLong();
    private volatile boolean counting;
    private long began;
    private double elapsed;
    private long ledgerId = -1;

    public static void main(String[] words) throws Exception {
        Drive drive = new Drive();
        for (int i = 1; i + 1 < words.length; i += 2) {
            drive.given.put(words[i].substring(2), words[i + 1]);
        }
        drive.run(words[0]);
        drive.report();
        System.exit(0);
    }

    private void run(String mode) throws Exception {
        if (mode.equals("recover")) {
            recover();
            return;
        }
        try (BookKeeper client = connect()) {
            switch (mode) {
                case "add" -> add(client);
                case "fill" -> fill(client);
                case "read" -> read(client);
                case "random" -> random(client);
                case "tail" -> tail(client);
                case "create" -> createAndClose(client);
                default -> throw new IllegalArgumentException("unknown mode " + mode);
            }
        }
    }

    // -- what was asked for ------------------------------------------------------------------------------------------

    private String text(String name, String standard) {
        return given.getOrDefault(name, standard);
    }

    private int number(String name, int standard) {
        return Integer.parseInt(text(name, String.valueOf(standard)));
    }

    private long nanos(String name) {
        return (long) (Double.parseDouble(text(name, "8")) * 1e9);
    }

    private BookKeeper connect() throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(text("metadata", null));
        configuration.setUseV2WireProtocol(text("wire", "v2").equals("v2"));
        configuration.setThrottleValue(0);
        return new BookKeeper(configuration);
    }

    private LedgerHandle create(BookKeeper client) throws Exception {
        String[] quorums = text("quorums", "3,3,2").split(",");
        return (LedgerHandle) client.newCreateLedgerOp()
            .withEnsembleSize(Integer.parseInt(quorums[0]))
            .withWriteQuorumSize(Integer.parseInt(quorums[1]))
            .withAckQuorumSize(Integer.parseInt(quorums[2]))
            .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
    }

    private ReadHandle open(BookKeeper client, long ledger, boolean recovery) throws Exception {
        return client.newOpenLedgerOp().withLedgerId(ledger).withRecovery(recovery)
            .withDigestType(DigestType.CRC32C).withPassword(PASSWORD).execute().get();
    }

    private static byte[] payloads() {
        byte[] payloads = new byte[PAYLOADS];
        new Random(7).nextBytes(payloads);
        return payloads;
    }

    // -- what is counted ---------------------------------------------------------------------------------------------

    private static void event(String name) {
        System.out.println("{\"event\": \"" + name + "\"}");
        System.out.flush();
    }

    /** Tell that everything is prepared and wait for a line. */
    private static void ready() throws Exception {
        event("ready");
        System.in.read();
    }

    private void begin() {
        event("begin");
        began = System.nanoTime();
        counting = true;
    }

    private void end() {
        counting = false;
        elapsed = (System.nanoTime() - began) / 1e9;
        event("end");
    }

    private void count(long since, int size) {
        if (!counting) {
            return;
        }
        entries.incrementAndGet();
        bytes.addAndGet(size);
        sample(since);
    }

    private void sample(long since) {
        int index = samples.getAndIncrement();
        if (index < SAMPLES_MAX) {
            latencies[index] = (int) ((System.nanoTime() - since) / 1000);
        }
    }

    private void report() {
        int kept = Math.min(samples.get(), SAMPLES_MAX);
        Arrays.sort(latencies, 0, kept);
        System.out.printf(Locale.ROOT, "{\"event\": \"result\", \"entries\": %d, \"bytes\": %d, \"elapsed_s\": %.6f, "
            + "\"p50_us\": %d, \"p99_us\": %d, \"errors\": %d, \"ledger\": %d}%n", entries.get(), bytes.get(), elapsed,
            percentile(kept, 0.5), percentile(kept, 0.99), errors.get(), ledgerId);
        System.out.flush();
    }

    private int percentile(int kept, double share) {
        return kept == 0 ? 0 : latencies[Math.max(0, (int) Math.ceil(share * kept) - 1)];
    }

    // -- adds --------------------------------------------------------------------------------------------------------

    /** A window of entries in flight over all ledgers, which take turns in random order. */
    private void add(BookKeeper client) throws Exception {
        byte[] payloads = payloads();
        int[] sizes = Arrays.stream(text("sizes", text("size", "1024")).split(",")).mapToInt(Integer::parseInt).toArray();
        List<LedgerHandle> ledgers = Collections.synchronizedList(new ArrayList<>());
        inParallel(number("ledgers", 1), 32, () -> ledgers.add(create(client)));
        Collections.shuffle(ledgers, new Random(7));
        int inFlight = number("window", 1000);
        Semaphore window = new Semaphore(inFlight);
        long countFrom = System.nanoTime() + nanos("warmup");
        long until = countFrom + nanos("seconds");
        int turn = 0;
        while (errors.get() == 0) {
            window.acquire();
            long now = System.nanoTime();
            if (now >= until) {
                window.release();
                break;
            }
            if (!counting && now >= countFrom) {
                begin();
                now = System.nanoTime();
            }
            long submitted = now;
            int size = sizes[turn % sizes.length];
            int offset = (int) ((turn * 4099L) % (PAYLOADS - size + 1));
            ledgers.get(turn % ledgers.size()).asyncAddEntry(payloads, offset, size, (code, handle, entry, context) -> {
                if (code != 0) {
                    errors.incrementAndGet();
                } else {
                    count(submitted, size);
                }
                window.release();
            }, null);
            turn = turn == Integer.MAX_VALUE ? 0 : turn + 1;
        }
        if (counting) {
            end();
        }
        window.tryAcquire(inFlight, 10, TimeUnit.SECONDS);
    }

    private void write(LedgerHandle ledger, int count, int size, int inFlight) throws Exception {
        byte[] payloads = payloads();
        Semaphore window = new Semaphore(inFlight);
        for (int i = 0; i < count; i++) {
            window.acquire();
            ledger.asyncAddEntry(payloads, (int) ((i * 4099L) % (PAYLOADS - size + 1)), size, (code, handle, entry, context) -> {
                if (code != 0) {
                    errors.incrementAndGet();
                }
                window.release();
            }, null);
        }
        window.acquire(inFlight);
    }

    private void fill(BookKeeper client) throws Exception {
        LedgerHandle ledger = create(client);
        ledgerId = ledger.getId();
        write(ledger, number("entries", 200_000), number("size", 1024), 1000);
        if (text("close", "yes").equals("yes")) {
            ledger.close();
        }
    }

    // -- reads -------------------------------------------------------------------------------------------------------

    private void read(BookKeeper client) throws Exception {
        try (ReadHandle ledger = open(client, number("ledger", -1), false)) {
            long last = number("last", (int) ledger.getLastAddConfirmed());
            long warmUntil = System.nanoTime() + nanos("warmup");
            boolean cold = text("cold", "no").equals("yes");
            while (System.nanoTime() < warmUntil) {
                // What is to be read cold must not be read before.
                pass(ledger, cold ? last + 1 : 0, cold ? ledger.getLastAddConfirmed() : last, warmUntil);
            }
            if (cold) {
                ready();
            }
            begin();
            long until = began + nanos("seconds");
            do {
                pass(ledger, 0, last, until);
            } while (!cold && System.nanoTime() < until);
            end();
        }
    }

    private void pass(ReadHandle ledger, long first, long last, long until) throws Exception {
        boolean batches = text("api", "entries").equals("batches");
        int most = number("batch", 1000);
        for (long next = first; next <= last && System.nanoTime() < until;) {
            long end = Math.min(next + most - 1, last);
            long submitted = System.nanoTime();
            try (LedgerEntries found = batches ? ledger.batchRead(next, (int) (end - next + 1), 5L << 20)
                    : ledger.read(next, end)) {
                for (LedgerEntry entry : found) {
                    if (counting) {
                        entries.incrementAndGet();
                        bytes.addAndGet(entry.getEntryBuffer().readableBytes());
                    }
                    next = entry.getEntryId() + 1;
                }
            }
            if (counting) {
                sample(submitted);
            }
        }
    }

    private void random(BookKeeper client) throws Exception {
        try (ReadHandle ledger = open(client, number("ledger", -1), false)) {
            int last = number("last", (int) ledger.getLastAddConfirmed());
            boolean cold = text("cold", "no").equals("yes");
            // What is to be read cold must not be read before.
            int low = cold ? last + 1 : 0;
            int high = cold ? (int) ledger.getLastAddConfirmed() : last;
            readAtRandom(ledger, low, high, System.nanoTime() + nanos("warmup"));
            if (cold) {
                ready();
            }
            begin();
            readAtRandom(ledger, 0, last, began + nanos("seconds"));
            end();
        }
    }

    private void readAtRandom(ReadHandle ledger, int low, int high, long until) throws Exception {
        Random random = new Random(7);
        int inFlight = number("window", 16);
        Semaphore window = new Semaphore(inFlight);
        while (System.nanoTime() < until && errors.get() == 0) {
            window.acquire();
            long entry = low + random.nextInt(high - low + 1);
            long submitted = System.nanoTime();
            ledger.readAsync(entry, entry).whenComplete((found, error) -> {
                if (error != null) {
                    errors.incrementAndGet();
                } else {
                    count(submitted, (int) found.getEntry(entry).getLength());
                    found.close();
                }
                window.release();
            });
        }
        window.acquire(inFlight);
    }

    // -- tail --------------------------------------------------------------------------------------------------------

    /** A writer at a fixed rate and a reader that follows it, each with a client of its own. */
    private void tail(BookKeeper writing) throws Exception {
        int rate = number("rate", 1000);
        int size = number("size", 1024);
        byte[] payload = Arrays.copyOf(payloads(), size);
        LedgerHandle ledger = create(writing);
        long start = System.nanoTime();
        long from = start + nanos("warmup");
        long until = from + nanos("seconds");
        int count = (int) ((until - start) / 1_000_000_000.0 * rate);
        long[] submitted = new long[count];
        Thread writer = new Thread(() -> {
            for (int i = 0; i < count; i++) {
                long due = start + (long) (i * 1e9 / rate);
                for (long now = System.nanoTime(); now < due; now = System.nanoTime()) {
                    LockSupport.parkNanos(due - now);
                }
                submitted[i] = System.nanoTime();
                ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
                    if (code != 0) {
                        errors.incrementAndGet();
                    }
                }, null);
            }
        });
        writer.setDaemon(true);
        writer.start();
        try (BookKeeper client = connect(); ReadHandle reader = open(client, ledger.getId(), false)) {
            boolean longPoll = text("api", "longpoll").equals("longpoll");
            long next = 0;
            while (System.nanoTime() < until && next < count && errors.get() == 0) {
                if (!counting && System.nanoTime() >= from) {
                    begin();
                }
                if (longPoll) {
                    try (var answer = reader.readLastAddConfirmedAndEntry(next, 1000, false)) {
                        if (answer.hasEntry()) {
                            seen(submitted[(int) next], from, size);
                            next++;
                        }
                    }
                }
                long confirmed = longPoll ? reader.getLastAddConfirmed() : reader.readLastAddConfirmed();
                if (confirmed >= next) {
                    try (LedgerEntries found = reader.read(next, confirmed)) {
                        for (LedgerEntry entry : found) {
                            seen(submitted[(int) entry.getEntryId()], from, size);
                        }
                    }
                    next = confirmed + 1;
                }
            }
            end();
        }
    }

    private void seen(long submitted, long from, int size) {
        if (submitted >= from) {
            count(submitted, size);
        }
    }

    // -- ledgers -----------------------------------------------------------------------------------------------------

    /** Ledgers whose writer went away; another client opens one after the other with recovery. */
    private void recover() throws Exception {
        int warm = number("warm-ledgers", 30);
        int count = number("entries", 1000);
        List<Long> left = new ArrayList<>();
        try (BookKeeper writing = connect()) {
            for (int i = 0; i < warm + number("ledgers", 40); i++) {
                LedgerHandle ledger = create(writing);
                write(ledger, count, number("size", 1024), number("window", 1000));
                left.add(ledger.getId());
            }
        }
        try (BookKeeper client = connect()) {
            for (int i = 0; i < left.size(); i++) {
                if (i == warm) {
                    begin();
                }
                long submitted = System.nanoTime();
                try (ReadHandle ledger = open(client, left.get(i), true)) {
                    if (ledger.getLastAddConfirmed() != count - 1) {
                        errors.incrementAndGet();
                    }
                    count(submitted, 0);
                }
            }
            end();
        }
    }

    private void createAndClose(BookKeeper client) throws Exception {
        long countFrom = System.nanoTime() + nanos("warmup");
        long until = countFrom + nanos("seconds");
        int window = number("window", 1);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < window; i++) {
            threads.add(new Thread(() -> {
                while (System.nanoTime() < until && errors.get() == 0) {
                    long submitted = System.nanoTime();
                    try {
                        create(client).close();
                        count(submitted, 0);
                    } catch (Exception error) {
                        error.printStackTrace();
                        errors.incrementAndGet();
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        Thread.sleep((countFrom - System.nanoTime()) / 1_000_000);
        begin();
        for (Thread thread : threads) {
            thread.join();
        }
        end();
    }

    private interface Work {
        void run() throws Exception;
    }

    private void inParallel(int count, int most, Work work) throws Exception {
        AtomicInteger next = new AtomicInteger();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Math.min(count, most); i++) {
            threads.add(new Thread(() -> {
                while (next.getAndIncrement() < count) {
                    try {
                        work.run();
                    } catch (Exception error) {
                        error.printStackTrace();
                        errors.incrementAndGet();
                    }
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
    }
}

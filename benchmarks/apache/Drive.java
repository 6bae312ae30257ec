import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Closed-loop load with Apache's client: "add" keeps a window of entries in flight, "read" reads a ledger in order.
 * Prints "entries elapsed_s cpu_s errors p50_us p99_us" of the measured part; the caller measures the bookies.
 */
public class Drive {
    private static final int SAMPLES_MAX = 8_000_000;
    private final Map<String, String> given = new HashMap<>();
    private final int[] latencies = new int[SAMPLES_MAX];
    private final AtomicInteger samples = new AtomicInteger();
    private final AtomicInteger errors = new AtomicInteger();
    private volatile boolean counting;

    public static void main(String[] words) throws Exception {
        Drive drive = new Drive();
        for (int i = 1; i + 1 < words.length; i += 2) {
            drive.given.put(words[i].substring(2), words[i + 1]);
        }
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(drive.given.get("metadata"));
        configuration.setUseV2WireProtocol(true);
        configuration.setThrottleValue(0);
        try (BookKeeper client = new BookKeeper(configuration)) {
            if (words[0].equals("add")) {
                drive.add(client);
            } else {
                drive.read(client);
            }
        }
        System.exit(0);
    }

    private int number(String name, int standard) {
        return Integer.parseInt(given.getOrDefault(name, String.valueOf(standard)));
    }

    private LedgerHandle create(BookKeeper client) throws Exception {
        return client.createLedger(3, 3, 2, DigestType.CRC32C, new byte[0]);
    }

    private byte[] payload() {
        byte[] payload = new byte[number("size", 1024)];
        new Random(7).nextBytes(payload);
        return payload;
    }

    private void add(BookKeeper client) throws Exception {
        byte[] payload = payload();
        Semaphore window = new Semaphore(number("window", 1000));
        long begin = System.nanoTime();
        long countFrom = begin + number("warmup", 8) * 1_000_000_000L;
        long end = countFrom + number("seconds", 8) * 1_000_000_000L;
        LedgerHandle ledger = create(client);
        double cpu = 0;
        long measuredFrom = 0;
        while (errors.get() == 0) {
            window.acquire();
            long now = System.nanoTime();
            if (!counting && now >= countFrom) {
                counting = true;
                measuredFrom = now;
                cpu = cpuSeconds();
            }
            if (now >= end) {
                break;
            }
            ledger.asyncAddEntry(payload, (code, handle, entry, context) -> {
                if (code != 0) {
                    errors.incrementAndGet();
                } else {
                    record(now);
                }
                window.release();
            }, null);
        }
        report(measuredFrom, cpu);
        ledger.close();
    }

    private void read(BookKeeper client) throws Exception {
        int entries = number("entries", 200_000);
        LedgerHandle writer = create(client);
        byte[] payload = payload();
        CountDownLatch written = new CountDownLatch(entries);
        Semaphore window = new Semaphore(1000);
        for (int i = 0; i < entries; i++) {
            window.acquire();
            writer.asyncAddEntry(payload, (code, handle, entry, context) -> {
                errors.addAndGet(code == 0 ? 0 : 1);
                written.countDown();
                window.release();
            }, null);
        }
        written.await();
        writer.close();
        LedgerHandle reader = client.openLedger(writer.getId(), DigestType.CRC32C, new byte[0]);
        int batch = number("batch", 1000);
        long countFrom = System.nanoTime() + number("warmup", 8) * 1_000_000_000L;
        long end = countFrom + number("seconds", 8) * 1_000_000_000L;
        double cpu = 0;
        long measuredFrom = 0;
        for (long first = 0;; first = first + batch < entries ? first + batch : 0) {
            long now = System.nanoTime();
            if (!counting && now >= countFrom) {
                counting = true;
                measuredFrom = now;
                cpu = cpuSeconds();
            }
            if (now >= end) {
                break;
            }
            var found = reader.readEntries(first, Math.min(first + batch, entries) - 1);
            while (found.hasMoreElements()) {
                found.nextElement().getEntry();
                record(now);
            }
        }
        report(measuredFrom, cpu);
    }

    private void record(long since) {
        if (counting) {
            int index = samples.getAndIncrement();
            if (index < SAMPLES_MAX) {
                latencies[index] = (int) ((System.nanoTime() - since) / 1000);
            }
        }
    }

    private static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    private void report(long measuredFrom, double cpuBefore) {
        double elapsed = (System.nanoTime() - measuredFrom) / 1e9;
        int count = samples.get();
        int kept = Math.min(count, SAMPLES_MAX);
        Arrays.sort(latencies, 0, kept);
        int p50 = kept == 0 ? 0 : latencies[kept / 2];
        int p99 = kept == 0 ? 0 : latencies[(int) (0.99 * (kept - 1))];
        System.out.printf(java.util.Locale.ROOT, "RESULT %d %.3f %.3f %d %d %d%n", count, elapsed,
                cpuSeconds() - cpuBefore, errors.get(), p50, p99);
    }
}

import java.io.File;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import org.apache.bookkeeper.stats.Counter;
import org.apache.bookkeeper.stats.Gauge;
import org.apache.bookkeeper.stats.OpStatsData;
import org.apache.bookkeeper.stats.OpStatsLogger;
import org.apache.bookkeeper.stats.StatsLogger;
import org.apache.bookkeeper.stats.StatsProvider;
import org.apache.commons.configuration2.Configuration;

/**
 * Apache's own counters, summed by name in whatever scope, in the file that `countsFile` names: a line "NAME SUM" each,
 * written anew five times a second. Of values (as bytes) the sum is kept, of everything else how often it happened.
 */
public class Counts implements StatsProvider {
    private final Map<String, LongAdder> sums = new ConcurrentHashMap<>();
    private volatile boolean isOver;

    @Override
    public void start(Configuration configuration) {
        File target = new File(configuration.getString("countsFile"));
        Thread writer = new Thread(() -> write(target));
        writer.setDaemon(true);
        writer.start();
    }

    private void write(File target) {
        try {
            while (!isOver) {
                StringBuilder lines = new StringBuilder();
                new TreeMap<>(sums).forEach((name, sum) -> lines.append(name).append(' ').append(sum).append('\n'));
                File part = new File(target.getPath() + ".part");
                Files.writeString(part.toPath(), lines);
                Files.move(part.toPath(), target.toPath(), StandardCopyOption.ATOMIC_MOVE);
                Thread.sleep(200);
            }
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    @Override
    public void stop() {
        isOver = true;
    }

    @Override
    public StatsLogger getStatsLogger(String scope) {
        return new Logger();
    }

    private LongAdder sum(String name) {
        return sums.computeIfAbsent(name, ignored -> new LongAdder());
    }

    private class Logger implements StatsLogger {
        @Override
        public OpStatsLogger getOpStatsLogger(String name) {
            return new Values(sum(name));
        }

        @Override
        public OpStatsLogger getThreadScopedOpStatsLogger(String name) {
            return getOpStatsLogger(name);
        }

        @Override
        public Counter getCounter(String name) {
            return new Number(sum(name));
        }

        @Override
        public Counter getThreadScopedCounter(String name) {
            return getCounter(name);
        }

        @Override
        public <T extends java.lang.Number> void registerGauge(String name, Gauge<T> gauge) {
        }

        @Override
        public <T extends java.lang.Number> void unregisterGauge(String name, Gauge<T> gauge) {
        }

        @Override
        public StatsLogger scope(String name) {
            return this;
        }

        @Override
        public void removeScope(String name, StatsLogger logger) {
        }
    }

    private record Values(LongAdder sum) implements OpStatsLogger {
        @Override
        public void registerFailedEvent(long latency, TimeUnit unit) {
        }

        @Override
        public void registerSuccessfulEvent(long latency, TimeUnit unit) {
            sum.increment();
        }

        @Override
        public void registerSuccessfulValue(long value) {
            sum.add(value);
        }

        @Override
        public void registerFailedValue(long value) {
        }

        @Override
        public OpStatsData toOpStatsData() {
            return new OpStatsData(sum.sum(), 0, 0, new long[6]);
        }

        @Override
        public void clear() {
            sum.reset();
        }
    }

    private record Number(LongAdder sum) implements Counter {
        @Override
        public void clear() {
            sum.reset();
        }

        @Override
        public void inc() {
            sum.increment();
        }

        @Override
        public void dec() {
            sum.decrement();
        }

        @Override
        public void addCount(long count) {
            sum.add(count);
        }

        @Override
        public void addLatency(long latency, TimeUnit unit) {
            sum.increment();
        }

        @Override
        public Long get() {
            return sum.sum();
        }
    }
}

// Java's DistributedLog under the load of dlogs.py: java Dlogs URI LOG SIZE COUNT WINDOW DELAY_MS
// Prints a line for each phase: its name and its seconds. drive.py does the same with our package.

import java.net.URI;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.common.concurrent.FutureUtils;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;

public class Dlogs {
    public static void main(String[] words) throws Exception {
        int size = Integer.parseInt(words[2]);
        int count = Integer.parseInt(words[3]);
        int window = Integer.parseInt(words[4]);
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setProperty("bkcEnsembleSize", 3);
        conf.setProperty("bkcWriteQuorumSize", 3);
        conf.setProperty("bkcAckQuorumSize", 2);
        conf.setProperty("writerOutputBufferSize", 65536);
        conf.setProperty("periodicFlushFrequencyMilliSeconds", Integer.parseInt(words[5]));
        conf.setProperty("logSegmentRollingMinutes", 0);
        conf.setProperty("maxLogSegmentBytes", 1L << 30);
        Namespace namespace = NamespaceBuilder.newBuilder().conf(conf).uri(URI.create(words[0])).build();
        run(namespace, words[1] + "-warm", size, count / 2, window, false);
        run(namespace, words[1], size, count, window, true);
        Runtime.getRuntime().halt(0);
    }

    private static void say(boolean isMeasured, String phase, long since) {
        if (isMeasured) {
            System.out.println(phase + " " + (System.nanoTime() - since) / 1e9);
            System.out.flush();
        }
    }

    private static void run(Namespace namespace, String name, int size, int count, int window, boolean isMeasured)
            throws Exception {
        namespace.createLog(name);
        DistributedLogManager log = namespace.openLog(name);
        AsyncLogWriter writer = FutureUtils.result(log.openAsyncLogWriter());
        byte[] payload = new byte[size];
        FutureUtils.result(writer.write(new LogRecord(1, payload)));
        Semaphore room = new Semaphore(window);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long since = System.nanoTime();
        for (int txid = 2; txid <= count; txid++) {
            room.acquire();
            writer.write(new LogRecord(txid, payload)).whenComplete((dlsn, error) -> {
                if (error != null) {
                    failure.set(error);
                }
                room.release();
            });
        }
        room.acquire(window);
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
        say(isMeasured, "write", since);
        FutureUtils.result(writer.write(new LogRecord(count + 1, payload)));  // Makes the last one visible.
        since = System.nanoTime();
        read(log, count);
        say(isMeasured, "catch-up", since);
        FutureUtils.result(writer.asyncClose());
        since = System.nanoTime();
        read(log, count);
        say(isMeasured, "read", since);
        log.close();
    }

    private static void read(DistributedLogManager log, int count) throws Exception {
        AsyncLogReader reader = FutureUtils.result(log.openAsyncLogReader(DLSN.InitialDLSN));
        int total = 0;
        while (total < count) {
            List<LogRecordWithDLSN> records = FutureUtils.result(reader.readBulk(1000), 60, TimeUnit.SECONDS);
            for (LogRecordWithDLSN record : records) {
                total += record.getPayload().length > 0 ? 1 : 0;
            }
        }
        FutureUtils.result(reader.asyncClose());
    }
}

// One of Apache's DistributedLog clients, for tests: commands of words on standard input, lines on standard output, the
// last of each command `ok` or `error`. peer.py speaks the same for ours. Run: java -cp 'classes:jars/*' Dlog URI CLIENT_ID

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.distributedlog.DLSN;
import org.apache.distributedlog.DistributedLogConfiguration;
import org.apache.distributedlog.LogRecord;
import org.apache.distributedlog.LogRecordSet;
import org.apache.distributedlog.LogRecordWithDLSN;
import org.apache.distributedlog.LogSegmentMetadata;
import org.apache.distributedlog.api.AsyncLogReader;
import org.apache.distributedlog.api.AsyncLogWriter;
import org.apache.distributedlog.api.DistributedLogManager;
import org.apache.distributedlog.api.namespace.Namespace;
import org.apache.distributedlog.api.namespace.NamespaceBuilder;
import org.apache.distributedlog.impl.metadata.BKDLConfig;
import org.apache.distributedlog.io.CompressionCodec;
import org.apache.distributedlog.metadata.DLMetadata;
import org.apache.distributedlog.exceptions.EndOfStreamException;
import org.apache.distributedlog.exceptions.ReadCancelledException;
import org.apache.bookkeeper.common.concurrent.FutureUtils;

public class Dlog {
    private static Namespace namespace;
    private static DistributedLogManager log;
    private static AsyncLogWriter writer;

    public static void main(String[] arguments) throws Exception {
        URI uri = URI.create(arguments[0]);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = input.readLine()) != null) {
            try {
                run(uri, arguments[1], line.split(" "));
                say("ok");
            } catch (Throwable error) {
                Throwable cause = error.getCause() != null && error.getClass().getName().contains("Execution")
                        ? error.getCause() : error;
                say("error " + cause.getClass().getSimpleName() + " " + String.valueOf(cause.getMessage()).replace('\n', ' '));
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String text(DLSN dlsn) {
        return dlsn.getLogSegmentSequenceNo() + ":" + dlsn.getEntryId() + ":" + dlsn.getSlotId();
    }

    private static DLSN dlsn(String text) {
        String[] parts = text.split(":");
        return new DLSN(Long.parseLong(parts[0]), Long.parseLong(parts[1]), Long.parseLong(parts[2]));
    }

    private static void say(LogRecordWithDLSN record) {
        say("record " + record.getTransactionId() + " " + text(record.getDlsn()) + " " + record.getSequenceId() + " "
                + new String(record.getPayload()));
    }

    private static void open(URI uri, String client, String[] words) throws Exception {
        DistributedLogConfiguration conf = new DistributedLogConfiguration();
        conf.setProperty("bkcEnsembleSize", 1);
        conf.setProperty("bkcWriteQuorumSize", 1);
        conf.setProperty("bkcAckQuorumSize", 1);
        conf.setProperty("zkSessionTimeoutSeconds", 2);
        conf.setProperty("writerOutputBufferSize", 0);
        conf.setProperty("enableImmediateFlush", true);
        conf.setProperty("logSegmentRollingMinutes", 0);
        conf.setProperty("logSegmentRollingConcurrency", 1000);  // Otherwise one roll a minute.
        for (int i = 1; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            conf.setProperty(pair[0], pair[1]);
        }
        namespace = NamespaceBuilder.newBuilder().conf(conf).uri(uri).clientId(client).build();
    }

    private static <T> T wait(CompletableFuture<T> future) throws Exception {
        return FutureUtils.result(future, 60, TimeUnit.SECONDS);
    }

    private static void read(DLSN from, boolean endless) throws Exception {
        DLSN last = endless ? null : log.getLastDLSN();
        DLSN next = from;
        while (next != null) {
            next = readOn(next, last);
        }
    }

    /**
     * Reads to the last position, or without an end, and returns null; or where to read on: the read-ahead of this
     * version may cancel a read of its own when it closes a segment (the class of apache/bookkeeper 1973 and 2898).
     */
    private static DLSN readOn(DLSN from, DLSN last) throws Exception {
        AsyncLogReader reader = wait(log.openAsyncLogReader(from));
        DLSN next = from;
        try {
            while (last == null || next.compareTo(last) <= 0) {
                LogRecordWithDLSN record = last == null
                        ? FutureUtils.result(reader.readNext()) : wait(reader.readNext());
                say(record);
                next = record.getDlsn().getNextDLSN();
            }
        } catch (EndOfStreamException end) {
            return null;
        } catch (ReadCancelledException cancelled) {
            return next;
        } finally {
            wait(reader.asyncClose());
        }
        return null;
    }

    private static void run(URI uri, String client, String[] words) throws Exception {
        switch (words[0]) {
            case "bind":
                DLMetadata.create(new BKDLConfig(words[1], words[2])).create(uri);
                break;
            case "namespace":
                open(uri, client, words);
                break;
            case "log":
                log = namespace.openLog(words[1]);
                break;
            case "create":
                namespace.createLog(words[1]);
                break;
            case "logs":
                for (Iterator<String> names = namespace.getLogs(); names.hasNext();) {
                    say("name " + names.next());
                }
                break;
            case "rename":
                wait(namespace.renameLog(words[1], words[2]));
                break;
            case "delete":
                namespace.deleteLog(words[1]);
                break;
            case "lead":
                writer = wait(log.openAsyncLogWriter());
                break;
            case "write": {  // FIRST COUNT: one after the other, each acknowledgement is a line
                long first = Long.parseLong(words[1]);
                long count = Long.parseLong(words[2]);
                List<CompletableFuture<DLSN>> futures = new ArrayList<>();
                for (long txid = first; txid < first + count; txid++) {
                    final long id = txid;
                    CompletableFuture<DLSN> future = writer.write(new LogRecord(id, ("v" + id).getBytes()));
                    future.thenAccept(dlsn -> say("acked " + id + " " + text(dlsn)));
                    futures.add(future);
                    if (futures.size() % 50 == 0) {
                        wait(future);
                    }
                }
                for (CompletableFuture<DLSN> future : futures) {
                    wait(future);
                }
                break;
            }
            case "set": {  // TXID COUNT CODEC
                LogRecordSet.Writer set = LogRecordSet.newWriter(
                        1024, CompressionCodec.Type.valueOf(words[3].toUpperCase()));
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    set.writeRecord(ByteBuffer.wrap(("s" + i).getBytes()), new CompletableFuture<>());
                }
                LogRecord record = new LogRecord(Long.parseLong(words[1]), set.getBuffer());
                record.setRecordSet();
                say("acked " + words[1] + " " + text(wait(writer.write(record))));
                break;
            }
            case "end":
                wait(writer.markEndOfStream());
                break;
            case "close":
                wait(writer.asyncClose());
                break;
            case "truncate":
                say("done " + wait(writer.truncate(dlsn(words[1]))));
                break;
            case "purge":
                log.purgeLogsOlderThan(Long.parseLong(words[1]));
                break;
            case "recover":
                log.recover();
                break;
            case "read":
                read(dlsn(words[1]), false);
                break;
            case "tail":
                read(dlsn(words[1]), true);
                break;
            case "first":
                say(log.getFirstLogRecord());
                break;
            case "last":
                say(log.getLastLogRecord());
                break;
            case "find":
                say("at " + text(wait(log.getDLSNNotLessThanTxId(Long.parseLong(words[1])))));
                break;
            case "count":
                say("count " + wait(log.getLogRecordCountAsync(dlsn(words[1]))));
                break;
            case "segments":
                for (LogSegmentMetadata segment : log.getLogSegments()) {
                    say("segment " + segment.getLogSegmentSequenceNumber() + " " + segment.getLogSegmentId() + " "
                            + segment.getRecordCount() + " " + segment.getStartSequenceId());
                }
                break;
            case "commit":
                wait(log.getSubscriptionsStore().advanceCommitPosition(words[1], dlsn(words[2])));
                break;
            case "cursors":
                for (Map.Entry<String, DLSN> cursor : wait(log.getSubscriptionsStore().getLastCommitPositions()).entrySet()) {
                    say("cursor " + cursor.getKey() + " " + text(cursor.getValue()));
                }
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}

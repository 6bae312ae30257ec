// ZooKeeper and one of Apache's bookies in one process, for tests: started on a folder, stopped in an orderly way when
// standard input ends. Run from source: java -cp 'jars/*' Bookie.java FOLDER STORAGE_CLASS [KEY=VALUE ...]

import java.io.File;
import java.net.InetSocketAddress;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.common.component.LifecycleComponentStack;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

public class Bookie {
    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.out.println("stopped");
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("failed");
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void run(String[] arguments) throws Exception {
        File folder = new File(arguments[0]).getAbsoluteFile();
        File data = new File(folder, "zookeeper");
        ZooKeeperServer zookeeper = new ZooKeeperServer(data, data, 500);
        NIOServerCnxnFactory network = new NIOServerCnxnFactory();
        network.configure(new InetSocketAddress("127.0.0.1", 0), 100);
        network.startup(zookeeper);

        ServerConfiguration conf = new ServerConfiguration();
        conf.setMetadataServiceUri("zk+hierarchical://127.0.0.1:" + network.getLocalPort() + "/ledgers");
        conf.setProperty("zkTimeout", 10000);
        conf.setBookieId("bk-test");
        conf.setBookiePort(0);
        conf.setAllowEphemeralPorts(true);
        conf.setAdvertisedAddress("127.0.0.1");
        conf.setAllowLoopback(true);
        conf.setProperty("journalDirectories", "journal");
        conf.setProperty("ledgerDirectories", "ledgers");
        conf.setLedgerStorageClass("org.apache.bookkeeper.bookie." + arguments[1]);
        conf.setProperty("journalPreAllocSizeMB", 1);
        conf.setDiskUsageThreshold(0.999f);
        conf.setDiskUsageWarnThreshold(0.999f);
        conf.setProperty("minUsableSizeForIndexFileCreation", 1 << 20);
        conf.setProperty("minUsableSizeForEntryLogCreation", 1 << 20);
        conf.setProperty("dbStorage_writeCacheMaxSizeMb", 16);
        conf.setProperty("dbStorage_readAheadCacheMaxSizeMb", 16);
        conf.setProperty("dbStorage_rocksDB_blockCacheSize", 8 << 20);
        conf.setProperty("autoRecoveryDaemonEnabled", false);
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            conf.setProperty(pair[0], pair[1]);
        }
        if (!new File(data, "initialized").exists()) {
            BookKeeperAdmin.initNewCluster(conf);
            new File(data, "initialized").createNewFile();
        }
        EmbeddedServer server = EmbeddedServer.builder(new BookieConfiguration(conf)).build();
        LifecycleComponentStack stack = server.getLifecycleComponentStack();
        stack.start();
        int port = server.getBookieService().getServer().getLocalAddress().getPort();
        System.out.println("serving " + port);
        System.out.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        stack.close();
        network.shutdown();
    }
}

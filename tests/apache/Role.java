// One of the two roles of Apache's AutoRecovery without the other, until standard input ends. Run from source:
// java -cp 'jars/*' Role.java auditor|worker CONF

import java.io.File;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.ReplicationWorker;

public class Role {
    public static void main(String[] arguments) throws Exception {
        ServerConfiguration conf = new ServerConfiguration();
        conf.loadConf(new File(arguments[1]).toURI().toURL());
        if (arguments[0].equals("auditor")) {
            new AuditorElector(conf.getBookieId(), conf).start();
        } else {
            new ReplicationWorker(conf).start();
        }
        while (System.in.read() >= 0) {
            continue;
        }
        Runtime.getRuntime().halt(0);
    }
}

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;

/** Says when the records begin that count: those before are for the compiler of the virtual machine. */
public class Warm {
    private static long left = Long.MAX_VALUE;

    /** Let so many records pass before the time begins; 0: there is no time, and records come without end. */
    public static void after(long records) {
        left = records > 0 ? records : Long.MAX_VALUE;
    }

    /** Return whether records come without end. */
    public static boolean isUnbounded() {
        return left == Long.MAX_VALUE;
    }

    /** Note a record; only one thread reads. */
    static void count() {
        if (--left == 0) {
            OperatingSystemMXBean machine = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            System.out.println("warm " + System.nanoTime() + " " + machine.getProcessCpuTime());
        }
    }
}

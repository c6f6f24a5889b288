import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Count, sum, sum of squares, least and largest of each field of a node's window. */
public class Summary {
    public static final int FIELDS = 5;

    public int node;
    public long count;
    public double[] sum = new double[FIELDS];
    public double[] squares = new double[FIELDS];
    public double[] least = new double[FIELDS];
    public double[] largest = new double[FIELDS];

    public Summary() {
        Arrays.fill(least, Double.POSITIVE_INFINITY);
        Arrays.fill(largest, Double.NEGATIVE_INFINITY);
    }

    /** Take a notification. */
    public Summary add(Heap heap) {
        node = heap.node;
        count++;
        for (int at = 0; at < FIELDS; at++) {
            double value = heap.values[at];
            sum[at] += value;
            squares[at] += value * value;
            least[at] = Math.min(least[at], value);
            largest[at] = Math.max(largest[at], value);
        }
        return this;
    }

    /** Return what a state store keeps. */
    public byte[] toBytes() {
        ByteBuffer buffer = ByteBuffer.allocate(12 + 4 * 8 * FIELDS).putInt(node).putLong(count);
        for (double[] figures : new double[][] {sum, squares, least, largest}) {
            for (double figure : figures) {
                buffer.putDouble(figure);
            }
        }
        return buffer.array();
    }

    /** Return what `toBytes` has made bytes of. */
    public static Summary of(byte[] bytes) {
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        Summary made = new Summary();
        made.node = buffer.getInt();
        made.count = buffer.getLong();
        for (double[] figures : new double[][] {made.sum, made.squares, made.least, made.largest}) {
            for (int at = 0; at < FIELDS; at++) {
                figures[at] = buffer.getDouble();
            }
        }
        return made;
    }

    /** Return the record for the output topic; `start` of the window [ms since 1970]. */
    public byte[] toJson(long start) {
        return ("{\"node\":" + node + ",\"start\":" + start + ",\"count\":" + count
                + ",\"sum\":" + Arrays.toString(sum) + ",\"squares\":" + Arrays.toString(squares)
                + ",\"min\":" + Arrays.toString(least) + ",\"max\":" + Arrays.toString(largest) + "}")
                .getBytes(StandardCharsets.UTF_8);
    }
}

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.IOException;

/** A heap notification: what its window needs. */
public class Heap {
    private static final JsonFactory JSON = new JsonFactory();

    public int node;
    /** Of the data [us since 1970]. */
    public long time;
    /** received, lost, late, flagged_fraction, latency. */
    public double[] values = new double[Summary.FIELDS];

    /** Decode one record with the streaming parser, the fastest that Jackson has. */
    public static Heap read(byte[] bytes) {
        Heap heap = new Heap();
        try (JsonParser parser = JSON.createParser(bytes)) {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                parser.nextToken();
                switch (name) {
                    case "node" -> heap.node = parser.getIntValue();
                    case "time" -> heap.time = parser.getLongValue();
                    case "received" -> heap.values[0] = parser.getDoubleValue();
                    case "lost" -> heap.values[1] = parser.getDoubleValue();
                    case "late" -> heap.values[2] = parser.getDoubleValue();
                    case "flagged_fraction" -> heap.values[3] = parser.getDoubleValue();
                    case "latency" -> heap.values[4] = parser.getDoubleValue();
                    default -> parser.skipChildren();
                }
            }
        } catch (IOException error) {
            throw new IllegalArgumentException("not a heap notification: " + new String(bytes), error);
        }
        Warm.count();
        return heap;
    }
}

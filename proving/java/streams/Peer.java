import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

/** The windows of heap notifications in Kafka Streams: BOOTSTRAP SOURCE TARGET WARM FOLDER. */
public class Peer {
    private static final Duration WINDOW = Duration.ofSeconds(1);
    private static final Duration GRACE = Duration.ofSeconds(2);

    public static void main(String[] args) {
        Warm.after(Long.parseLong(args[3]));
        Serde<Heap> heaps = Serdes.serdeFrom((topic, heap) -> null, (topic, bytes) -> Heap.read(bytes));
        Serde<Summary> summaries =
                Serdes.serdeFrom((topic, made) -> made == null ? null : made.toBytes(),
                        (topic, bytes) -> bytes == null ? null : Summary.of(bytes));
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(args[1], Consumed.with(Serdes.ByteArray(), heaps)
                        .withTimestampExtractor((record, before) -> ((Heap) record.value()).time / 1000))
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, GRACE))
                .aggregate(Summary::new, (key, heap, made) -> made.add(heap),
                        Materialized.<byte[], Summary>as(Stores.inMemoryWindowStore(
                                        "windows", Duration.ofMinutes(1), WINDOW, false))
                                .withKeySerde(Serdes.ByteArray()).withValueSerde(summaries).withCachingEnabled())
                .toStream()
                .map((window, made) -> KeyValue.pair(window.key(), made.toJson(window.window().start())))
                .to(args[2], Produced.with(Serdes.ByteArray(), Serdes.ByteArray()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings(args));
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    private static Properties settings(String[] args) {
        Properties made = new Properties();
        made.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
        made.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        made.put(StreamsConfig.STATE_DIR_CONFIG, args[4]);
        made.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        made.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        made.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        made.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        made.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        return made;
    }
}

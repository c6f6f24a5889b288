import java.time.Duration;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.KafkaSourceBuilder;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.CheckpointingMode;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** The windows of heap notifications in Flink, in one process: BOOTSTRAP SOURCE TARGET WARM FOLDER. */
public class Peer {
    private static final Duration OUT_OF_ORDER = Duration.ofMillis(200);

    public static void main(String[] args) throws Exception {
        Warm.after(Long.parseLong(args[3]));
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(1);
        job.getConfig().enableObjectReuse();
        job.enableCheckpointing(200, CheckpointingMode.EXACTLY_ONCE);
        KafkaSourceBuilder<Heap> source = KafkaSource.<Heap>builder()
                .setBootstrapServers(args[0]).setTopics(args[1]).setGroupId(args[2])
                .setStartingOffsets(OffsetsInitializer.earliest())
                .setProperty("max.poll.records", "10000")
                .setValueOnlyDeserializer(new Decoder());
        if (!Warm.isUnbounded()) {
            source.setBounded(OffsetsInitializer.latest());  // at its end the last windows close
        }
        KafkaSink<byte[]> sink = KafkaSink.<byte[]>builder()
                .setBootstrapServers(args[0])
                .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE).setTransactionalIdPrefix(args[2])
                .setProperty("transaction.timeout.ms", "60000")
                .setRecordSerializer(KafkaRecordSerializationSchema.<byte[]>builder()
                        .setTopic(args[2]).setValueSerializationSchema(new AsTheyAre()).build())
                .build();
        job.fromSource(source.build(), WatermarkStrategy.<Heap>forBoundedOutOfOrderness(OUT_OF_ORDER)
                        .withTimestampAssigner((heap, before) -> heap.time / 1000), "heaps")
                .keyBy(heap -> heap.node, Types.INT)
                .window(TumblingEventTimeWindows.of(Duration.ofSeconds(1)))
                .aggregate(new Fold(), new Emit())
                .sinkTo(sink);
        job.execute("peer");
    }

    /** Decodes a record. */
    public static class Decoder implements DeserializationSchema<Heap> {
        @Override
        public Heap deserialize(byte[] bytes) {
            return Heap.read(bytes);
        }

        @Override
        public boolean isEndOfStream(Heap heap) {
            return false;
        }

        @Override
        public TypeInformation<Heap> getProducedType() {
            return Types.POJO(Heap.class);
        }
    }

    /** Gives bytes to the topic. */
    public static class AsTheyAre implements SerializationSchema<byte[]> {
        @Override
        public byte[] serialize(byte[] bytes) {
            return bytes;
        }
    }

    /** Folds notifications as they come; a window holds one summary only. */
    public static class Fold implements AggregateFunction<Heap, Summary, Summary> {
        @Override
        public Summary createAccumulator() {
            return new Summary();
        }

        @Override
        public Summary add(Heap heap, Summary made) {
            return made.add(heap);
        }

        @Override
        public Summary getResult(Summary made) {
            return made;
        }

        @Override
        public Summary merge(Summary one, Summary other) {
            throw new UnsupportedOperationException("tumbling windows are never merged");
        }
    }

    /** Writes a window that is over. */
    public static class Emit extends ProcessWindowFunction<Summary, byte[], Integer, TimeWindow> {
        @Override
        public void process(Integer node, Context context, Iterable<Summary> made, Collector<byte[]> out) {
            out.collect(made.iterator().next().toJson(context.window().getStart()));
        }
    }
}

// The measured topologies in Kafka Streams: java -cp JARS Peer.java CASE, with the settings that benchmarks/__main__.py gives.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;

public class Peer {
    record Payment(String user, int amount, long n) {}

    record Doubled(String user, int doubled) {}

    public static void main(String[] arguments) {
        String name = arguments[0];
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, System.getenv("BENCH_APPLICATION"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getenv("BENCH_BROKERS"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getenv("BENCH_STATE"));
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, name.endsWith("exactly-once") ? "100" : "1000");
        if (name.endsWith("uncached")) settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        if (name.endsWith("exactly-once")) {
            settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        }
        String[] words = name.split(" ");
        StreamsBuilder builder = words[0].equals("nexmark") ? Nexmark.topology(words[1]) : topology(words[0], name.contains("typed"));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
    }

    private static StreamsBuilder topology(String name, boolean typed) {
        String source = System.getenv("BENCH_SOURCE"), sink = System.getenv("BENCH_SINK");
        StreamsBuilder builder = new StreamsBuilder();
        Serde<JsonNode> tree = json(JsonNode.class);
        if (name.equals("stateless") && typed) {
            builder.stream(source, Consumed.with(Serdes.String(), json(Payment.class)))
                .filter((key, value) -> value.amount() > 20)
                .mapValues(value -> new Doubled(value.user(), value.amount() * 2))
                .to(sink, Produced.with(Serdes.String(), json(Doubled.class)));
            return builder;
        }
        KStream<String, JsonNode> payments = builder.stream(source, Consumed.with(Serdes.String(), tree));
        switch (name) {
            case "stateless" -> payments
                .filter((key, value) -> value.get("amount").intValue() > 20)
                .mapValues(value -> {
                    ObjectNode doubled = MAPPER.createObjectNode();
                    doubled.set("user", value.get("user"));
                    return (JsonNode) doubled.put("doubled", value.get("amount").intValue() * 2);
                })
                .to(sink, Produced.with(Serdes.String(), tree));
            case "count" -> payments.groupByKey().count(Materialized.as("counts")).toStream()
                .to(sink, Produced.with(Serdes.String(), Serdes.Long()));
            case "windowed" -> payments.groupByKey()
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(1)))
                .aggregate(() -> 0L, (key, value, sum) -> sum + value.get("amount").longValue(),
                    Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream()
                .to(sink, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, 60_000L), Serdes.Long()));
            case "session" -> payments.groupByKey()
                .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofSeconds(20)))
                .aggregate(() -> 0L, (key, value, sum) -> sum + value.get("amount").longValue(),
                    (key, one, other) -> one + other,
                    Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream()
                .to(sink, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long()));
            case "stream" -> payments
                .join(
                    builder.stream(source + "-right", Consumed.with(Serdes.String(), tree)),
                    (left, right) -> {
                        ObjectNode pair = MAPPER.createObjectNode();
                        pair.set("user", left.get("user"));
                        return (JsonNode) pair.put("sum", left.get("amount").intValue() + right.get("amount").intValue());
                    },
                    JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(20), Duration.ofSeconds(20)),
                    StreamJoined.with(Serdes.String(), tree, tree))
                .to(sink, Produced.with(Serdes.String(), tree));
            default -> throw new IllegalArgumentException("no such case: " + name);
        }
        return builder;
    }

    static final ObjectMapper MAPPER = new ObjectMapper();

    static <T> Serde<T> json(Class<T> type) {
        var reader = MAPPER.readerFor(type);
        return Serdes.serdeFrom(
            (topic, value) -> {
                try {
                    return MAPPER.writeValueAsBytes(value);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            },
            (topic, bytes) -> {
                try {
                    return reader.readValue(bytes);
                } catch (IOException error) {
                    throw new UncheckedIOException(error);
                }
            });
    }
}

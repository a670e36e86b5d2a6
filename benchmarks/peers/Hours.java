// Windows of an hour behind a new key in Kafka Streams, with its defaults: java -cp JARS Hours.java, with the settings that
// benchmarks/time_behind_topics.py gives. At its end it prints how many records it has dropped, by its own metric.

import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;

public class Hours {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, System.getenv("BENCH_APPLICATION"));
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, System.getenv("BENCH_BROKERS"));
        settings.put(StreamsConfig.STATE_DIR_CONFIG, System.getenv("BENCH_STATE"));
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, System.getenv("BENCH_THREADS"));
        settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        KafkaStreams streams = new KafkaStreams(topology().build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            System.out.println(dropped(streams));
            streams.close(Duration.ofSeconds(10));
        }));
        streams.start();
    }

    private static StreamsBuilder topology() {
        StreamsBuilder builder = new StreamsBuilder();
        Duration hour = Duration.ofHours(1);
        builder.stream(System.getenv("BENCH_SOURCE"), Consumed.with(Serdes.String(), Serdes.String()))
            .groupBy((key, value) -> value.substring(0, 1), Grouped.with(Serdes.String(), Serdes.String()))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(hour))
            .count()
            .toStream()
            .to(
                System.getenv("BENCH_SINK"),
                Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, hour.toMillis()), Serdes.Long()));
        return builder;
    }

    private static long dropped(KafkaStreams streams) {
        return streams.metrics().values().stream()
            .filter(metric -> metric.metricName().name().equals("dropped-records-total"))
            .mapToLong(metric -> ((Number) metric.metricValue()).longValue())
            .sum();
    }
}

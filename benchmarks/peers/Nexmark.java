// The queries of Nexmark in Kafka Streams: benchmarks/nexmark/queries.py says what each means.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.processor.WallclockTimestampExtractor;
import org.apache.kafka.streams.state.WindowStore;

class Nexmark {
    private static final int PERSON = 0, AUCTION = 1, BID = 2;
    private static final Duration PERIOD = Duration.ofSeconds(10);
    private static final Set<String> STATES = Set.of("OR", "ID", "CA");
    private static final Serde<String> TEXT = Serdes.String();
    private static final Serde<Long> LONG = Serdes.Long();
    private static final Serde<JsonNode> TREE = Peer.json(JsonNode.class);
    private static final Produced<String, JsonNode> JSON = Produced.with(TEXT, TREE);

    private final String sink = System.getenv("BENCH_SINK");
    private final StreamsBuilder builder = new StreamsBuilder();
    private final KStream<String, JsonNode> events;

    private Nexmark(boolean processingTime) {
        Consumed<String, JsonNode> consumed = Consumed.with(TEXT, TREE);
        events = builder.stream(
            System.getenv("BENCH_SOURCE"),
            processingTime ? consumed.withTimestampExtractor(new WallclockTimestampExtractor()) : consumed);
    }

    static StreamsBuilder topology(String query) {
        Nexmark nexmark = new Nexmark(query.equals("q12"));
        switch (query) {
            case "q0" -> nexmark.passThrough();
            case "q1" -> nexmark.currencyConversion();
            case "q2" -> nexmark.selection();
            case "q3" -> nexmark.localItems();
            case "q4" -> nexmark.categoryMeans();
            case "q5" -> nexmark.hotItems();
            case "q7" -> nexmark.highestBids();
            case "q8" -> nexmark.newUsers();
            case "q11" -> nexmark.userSessions();
            case "q12" -> nexmark.processingTime();
            default -> throw new IllegalArgumentException("no such query: " + query);
        }
        return nexmark.builder;
    }

    private void passThrough() {
        of(BID).mapValues(bid -> (JsonNode) shortened(bid)).to(sink, JSON);
    }

    private void currencyConversion() {
        of(BID).mapValues(bid -> (JsonNode) shortened(bid).put("price", bid.get("price").longValue() * 0.908)).to(sink, JSON);
    }

    private void selection() {
        of(BID).filter((key, bid) -> bid.get("auction").longValue() % 123 == 0)
            .mapValues(bid -> part(bid, "auction", "price"))
            .to(sink, JSON);
    }

    private void localItems() {
        KTable<String, JsonNode> auctions = of(AUCTION)
            .filter((key, auction) -> auction.get("category").intValue() == 10)
            .mapValues(auction -> part(auction, "id", "seller"))
            .toTable(Materialized.with(TEXT, TREE));
        KTable<String, JsonNode> persons = of(PERSON)
            .filter((key, person) -> STATES.contains(person.get("state").textValue()))
            .mapValues(person -> part(person, "name", "city", "state"))
            .toTable(Materialized.with(TEXT, TREE));
        auctions.join(
                persons,
                auction -> auction.get("seller").asText(),
                (auction, person) -> {
                    ObjectNode item = (ObjectNode) part(person, "name", "city", "state");
                    item.set("id", auction.get("id"));
                    return (JsonNode) item;
                })
            .toStream()
            .to(sink, JSON);
    }

    private void categoryMeans() {
        KTable<String, JsonNode> auctions = of(AUCTION)
            .mapValues(auction -> part(auction, "category", "expires"))
            .toTable(Materialized.with(TEXT, TREE));
        KTable<String, JsonNode> winning = of(BID)
            .join(
                auctions,
                (bid, auction) -> {
                    ObjectNode joined = Peer.MAPPER.createObjectNode();
                    joined.set("category", auction.get("category"));
                    joined.set("price", bid.get("price"));
                    return (JsonNode) joined.put("in_time", bid.get("dateTime").longValue() <= auction.get("expires").longValue());
                },
                Joined.with(TEXT, TREE, TREE))
            .filter((key, bid) -> bid.get("in_time").booleanValue())
            .groupByKey(Grouped.with(TEXT, TREE))
            .reduce(Nexmark::higher, Materialized.with(TEXT, TREE));
        winning
            .groupBy(
                (key, bid) -> KeyValue.pair(bid.get("category").asText(), bid.get("price").longValue()),
                Grouped.with(TEXT, LONG))
            .aggregate(
                () -> sums(0, 0),
                (key, price, sums) -> sums(sums.get("total").longValue() + price, sums.get("auctions").longValue() + 1),
                (key, price, sums) -> sums(sums.get("total").longValue() - price, sums.get("auctions").longValue() - 1),
                Materialized.with(TEXT, TREE))
            .filter((category, sums) -> sums.get("auctions").longValue() > 0)
            .mapValues(sums -> sums.get("total").doubleValue() / sums.get("auctions").doubleValue())
            .toStream()
            .to(sink, Produced.with(TEXT, Serdes.Double()));
    }

    private void hotItems() {
        of(BID).groupByKey(Grouped.with(TEXT, TREE))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(PERIOD).advanceBy(Duration.ofSeconds(2)))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>with(TEXT, LONG))
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream()
            .map((window, number) -> {
                ObjectNode count = Peer.MAPPER.createObjectNode();
                count.put("auction", Long.parseLong(window.key())).put("num", number);
                return KeyValue.pair(Long.toString(window.window().start()), (JsonNode) count);
            })
            .groupByKey(Grouped.with(TEXT, TREE))
            .aggregate(() -> hot(0, Set.of()), Nexmark::most, Materialized.with(TEXT, TREE))
            .toStream()
            .to(sink, JSON);
    }

    private void highestBids() {
        of(BID).mapValues(bid -> (JsonNode) shortened(bid))
            .groupBy((key, bid) -> "all", Grouped.with(TEXT, TREE))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(PERIOD))
            .reduce(Nexmark::higher, Materialized.with(TEXT, TREE))
            .toStream()
            .to(sink, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, PERIOD.toMillis()), TREE));
    }

    private void newUsers() {
        KStream<String, JsonNode> persons = of(PERSON)
            .mapValues(person -> part(person, "id", "name"))
            .repartition(Repartitioned.with(TEXT, TREE).withName("persons"));
        KStream<String, Long> auctions = of(AUCTION)
            .map((key, auction) -> KeyValue.pair(auction.get("seller").asText(), auction.get("id").longValue()))
            .repartition(Repartitioned.with(TEXT, LONG).withName("auctions"));
        persons
            .join(
                auctions,
                (person, auction) -> (JsonNode) ((ObjectNode) part(person, "id", "name")).put("auction", auction),
                JoinWindows.ofTimeDifferenceAndGrace(PERIOD, Duration.ofMinutes(1)).before(Duration.ZERO),
                StreamJoined.with(TEXT, TREE, LONG))
            .to(sink, JSON);
    }

    private void userSessions() {
        byBidder().windowedBy(SessionWindows.ofInactivityGapWithNoGrace(PERIOD))
            .count()
            .toStream()
            .to(sink, Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), LONG));
    }

    private void processingTime() {
        byBidder().windowedBy(TimeWindows.ofSizeWithNoGrace(PERIOD))
            .count()
            .toStream()
            .to(sink, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, PERIOD.toMillis()), LONG));
    }

    private KGroupedStream<String, Long> byBidder() {
        return of(BID)
            .map((key, bid) -> KeyValue.pair(bid.get("bidder").asText(), bid.get("auction").longValue()))
            .groupByKey(Grouped.with(TEXT, LONG));
    }

    private KStream<String, JsonNode> of(int type) {
        return events.filter((key, event) -> event.get("event_type").intValue() == type);
    }

    private static ObjectNode shortened(JsonNode bid) {
        return (ObjectNode) part(bid, "auction", "bidder", "price", "dateTime", "extra");
    }

    private static JsonNode part(JsonNode event, String... fields) {
        ObjectNode part = Peer.MAPPER.createObjectNode();
        for (String field : fields) part.set(field, event.get(field));
        return part;
    }

    private static JsonNode higher(JsonNode best, JsonNode bid) {
        return bid.get("price").longValue() > best.get("price").longValue() ? bid : best;
    }

    private static JsonNode sums(long total, long auctions) {
        return Peer.MAPPER.createObjectNode().put("total", total).put("auctions", auctions);
    }

    private static JsonNode hot(long number, Iterable<Long> auctions) {
        ObjectNode hot = Peer.MAPPER.createObjectNode().put("num", number);
        ArrayNode list = hot.putArray("auctions");
        for (Long auction : auctions) list.add(auction);
        return hot;
    }

    private static JsonNode most(String window, JsonNode count, JsonNode hot) {
        long number = count.get("num").longValue(), before = hot.get("num").longValue();
        if (number < before) return hot;
        TreeSet<Long> auctions = new TreeSet<>();
        if (number == before) for (JsonNode auction : hot.get("auctions")) auctions.add(auction.longValue());
        auctions.add(count.get("auction").longValue());
        return hot(number, auctions);
    }
}

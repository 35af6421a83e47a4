package leveret.interop;

import static leveret.interop.Steps.PATIENCE_S;
import static leveret.interop.Steps.bodies;
import static leveret.interop.Steps.bytes;
import static leveret.interop.Steps.consume;
import static leveret.interop.Steps.equal;
import static leveret.interop.Steps.exclusive;
import static leveret.interop.Steps.named;
import static leveret.interop.Steps.next;
import static leveret.interop.Steps.onChannel;
import static leveret.interop.Steps.onConfirmChannel;
import static leveret.interop.Steps.queueWith;
import static leveret.interop.Steps.step;
import static leveret.interop.Steps.take;
import static leveret.interop.Steps.text;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Return;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.impl.LongStringHelper;
import java.io.IOException;
import java.math.BigDecimal;
import java.util.Arrays;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** What a publisher sees: confirms, returns, refusals, transactions, bodies and properties that arrive as sent. */
final class Publishing {
    private Publishing() {}

    static void tour(Connection connection, Tour.Connecting connect) {
        step("declared exchanges route what is published to bound queues",
                () -> onConfirmChannel(connection, Publishing::routing));
        step("a thousand persistent messages are confirmed",
                () -> onConfirmChannel(connection, Publishing::confirms));
        step("a mandatory message without a queue comes back before its confirm",
                () -> onConfirmChannel(connection, Publishing::returnsFirst));
        step("a full queue that rejects publishes nacks them",
                () -> onConfirmChannel(connection, Publishing::refusal));
        step("a transaction shows its messages after the commit and forgets them after a rollback",
                () -> onChannel(connection, Publishing::transaction));
        step("bodies of no byte and of three MiB arrive whole",
                () -> onConfirmChannel(connection, Publishing::largeAndEmpty));
        step("a body of 100 kB arrives whole over frames of 4 kB", () -> smallFrames(connect));
        step("headers of all types and all properties arrive as they were sent",
                () -> onConfirmChannel(connection, Publishing::properties));
        step("a request is answered by direct reply-to", () -> onChannel(connection, Publishing::directReply));
    }

    private static void routing(Channel channel) throws Exception {
        String queue = exclusive(channel, "routed", null);
        channel.exchangeDeclare(named("topic"), "topic", true);
        channel.exchangeDeclare(named("fanout"), "fanout");
        channel.exchangeDeclare(named("headers"), "headers");
        channel.queueBind(queue, named("topic"), "stock.*.#");
        channel.queueBind(queue, named("headers"), "", Map.of("x-match", "all", "colour", "grey", "legs", 4));
        channel.exchangeBind(named("topic"), named("fanout"), "");
        BlockingQueue<Delivery> deliveries = consume(channel, queue, true);
        var grey = new AMQP.BasicProperties.Builder().headers(Map.of("colour", "grey", "legs", 4)).build();
        channel.basicPublish(named("topic"), "stock.de.frankfurt", null, bytes("topic"));
        channel.basicPublish(named("topic"), "weather.de", null, bytes("not bound"));
        channel.basicPublish(named("fanout"), "stock.fr", null, bytes("through an exchange"));
        channel.basicPublish(named("headers"), "", grey, bytes("headers"));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        equal(bodies(take(deliveries, 3, "deliveries")), List.of("topic", "through an exchange", "headers"),
                "what arrived");
        channel.queueUnbind(queue, named("topic"), "stock.*.#");
        channel.exchangeUnbind(named("topic"), named("fanout"), "");
        for (String part : List.of("topic", "fanout", "headers")) {
            channel.exchangeDelete(named(part));
        }
    }

    private static void confirms(Channel channel) throws Exception {
        String queue = channel.queueDeclare(named("confirmed"), true, false, false, null).getQueue();
        for (int number = 1; number <= 1000; number++) {
            equal(channel.getNextPublishSeqNo(), (long) number, "the sequence number");
            channel.basicPublish("", queue, MessageProperties.PERSISTENT_TEXT_PLAIN, bytes("" + number));
        }
        equal(channel.waitForConfirms(PATIENCE_S * 1000), true, "all were acked");
        equal(channel.queueDelete(queue).getMessageCount(), 1000, "messages in the deleted queue");
    }

    private static void returnsFirst(Channel channel) throws Exception {
        BlockingQueue<Object> events = new LinkedBlockingQueue<>();
        channel.addReturnListener(events::add);
        channel.addConfirmListener((tag, multiple) -> events.add("ack " + tag), (tag, multiple) -> events.add("nack"));
        channel.basicPublish("amq.direct", named("nowhere"), true, null, bytes("come back"));
        Return returned = (Return) next(events, "the return");
        equal(List.of(returned.getReplyCode(), returned.getReplyText()), List.of(312, "NO_ROUTE"), "the reason");
        equal(List.of(returned.getExchange(), returned.getRoutingKey()), List.of("amq.direct", named("nowhere")),
                "the address");
        equal(text(returned.getBody()), "come back", "the body");
        equal(next(events, "the confirm"), "ack 1", "the confirm");
    }

    private static void refusal(Channel channel) throws Exception {
        String queue = queueWith(channel, "full", Map.of("x-max-length", 1, "x-overflow", "reject-publish"), "first");
        channel.basicPublish("", queue, null, bytes("second"));
        equal(channel.waitForConfirms(PATIENCE_S * 1000), false, "all were acked");
        equal(channel.messageCount(queue), 1L, "messages in the queue");
    }

    private static void transaction(Channel channel) throws Exception {
        String queue = exclusive(channel, "tx", null);
        channel.txSelect();
        channel.basicPublish("", queue, null, bytes("kept"));
        equal(channel.messageCount(queue), 0L, "messages before the commit");
        channel.txCommit();
        equal(channel.messageCount(queue), 1L, "messages after the commit");
        channel.basicPublish("", queue, null, bytes("forgotten"));
        channel.txRollback();
        GetResponse message = channel.basicGet(queue, false);
        equal(text(message.getBody()), "kept", "the message");
        channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
        channel.txRollback();
        channel.basicRecover(true);
        GetResponse again = channel.basicGet(queue, false);
        equal(again.getEnvelope().isRedeliver(), true, "redelivered");
        channel.basicAck(again.getEnvelope().getDeliveryTag(), false);
        channel.txCommit();
        equal(channel.queueDelete(queue).getMessageCount(), 0, "messages after the ack");
    }

    private static void largeAndEmpty(Channel channel) throws Exception {
        String queue = exclusive(channel, "bodies", null);
        byte[] large = new byte[3 * 1024 * 1024 + 7];
        for (int index = 0; index < large.length; index++) {
            large[index] = (byte) (index * 31);
        }
        channel.basicPublish("", queue, null, new byte[0]);
        channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, large);
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        List<Delivery> arrived = take(consume(channel, queue, true), 2, "both bodies");
        equal(arrived.get(0).getBody().length, 0, "the length of the empty body");
        equal(Arrays.equals(arrived.get(1).getBody(), large), true, "the large body is the same");
    }

    private static void smallFrames(Tour.Connecting connect) throws Exception {
        try (Connection connection = connect.with(factory -> factory.setRequestedFrameMax(4096))) {
            equal(connection.getFrameMax(), 4096, "the negotiated frame size");
            onConfirmChannel(connection, channel -> {
                String body = "x".repeat(100_000);
                String queue = queueWith(channel, "small-frames", null, body);
                equal(text(channel.basicGet(queue, true).getBody()).equals(body), true, "the body is the same");
            });
        }
    }

    private static Map<String, Object> headers() {
        Map<String, Object> headers = new HashMap<>();
        headers.put("nothing", null);
        headers.putAll(Map.of("yes", true, "no", false, "text", LongStringHelper.asLongString("naïve – 兔")));
        headers.putAll(Map.of("byte", (byte) -128, "short", (short) -32768, "int", Integer.MIN_VALUE,
                "long", Long.MIN_VALUE, "float", 0.5f, "double", 0.1, "decimal", new BigDecimal("3.14")));
        headers.put("time", new Date(1_700_000_000_000L));
        headers.put("list", List.of(1, List.of(2L), LongStringHelper.asLongString("three")));
        headers.put("table", Map.of("inner", Map.of("most", 1), "none", Map.of()));
        return headers;
    }

    private static void properties(Channel channel) throws Exception {
        String queue = exclusive(channel, "properties", null);
        Map<String, Object> headers = headers();
        headers.put("bytes", new byte[] {0, -1, 10});
        AMQP.BasicProperties sent = new AMQP.BasicProperties.Builder()
                .contentType("text/plain").contentEncoding("utf-8").deliveryMode(2).priority(7)
                .correlationId("c-1").replyTo("somewhere").expiration("600000").messageId("m-1")
                .timestamp(new Date(1_700_000_001_000L)).type("kind").userId("guest").appId("tour")
                .clusterId("cluster").headers(headers).build();
        channel.basicPublish("", queue, sent, bytes("body"));
        channel.waitForConfirmsOrDie(PATIENCE_S * 1000);
        AMQP.BasicProperties arrived = channel.basicGet(queue, true).getProps();
        byte[] raw = (byte[]) arrived.getHeaders().get("bytes");
        equal(raw, new byte[] {0, -1, 10}, "the bytes in the headers");
        equal(arrived.getHeaders().keySet(), headers.keySet(), "the names of the headers");
        headers().forEach((name, value) -> equal(arrived.getHeaders().get(name), value, "header " + name));
        equal(arrived.builder().headers(null).build(), sent.builder().headers(null).build(), "the properties");
    }

    private static void directReply(Channel channel) throws Exception {
        String requests = exclusive(channel, "requests", null);
        channel.basicConsume(requests, true, (tag, request) -> answer(channel, request), tag -> {});
        RpcClient client = new RpcClient(
                new RpcClientParams().channel(channel).exchange("").routingKey(requests).timeout(15_000));
        equal(client.stringCall("hare"), "HARE", "the answer");
        client.close();
    }

    private static void answer(Channel channel, Delivery request) throws IOException {
        var properties = new AMQP.BasicProperties.Builder()
                .correlationId(request.getProperties().getCorrelationId()).build();
        String answer = text(request.getBody()).toUpperCase();
        channel.basicPublish("", request.getProperties().getReplyTo(), properties, bytes(answer));
    }
}

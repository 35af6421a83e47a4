package leveret.interop;

import static leveret.interop.Steps.bodies;
import static leveret.interop.Steps.bytes;
import static leveret.interop.Steps.consume;
import static leveret.interop.Steps.equal;
import static leveret.interop.Steps.exclusive;
import static leveret.interop.Steps.expectChannelError;
import static leveret.interop.Steps.named;
import static leveret.interop.Steps.next;
import static leveret.interop.Steps.onChannel;
import static leveret.interop.Steps.onConfirmChannel;
import static leveret.interop.Steps.queueWith;
import static leveret.interop.Steps.redelivered;
import static leveret.interop.Steps.step;
import static leveret.interop.Steps.tag;
import static leveret.interop.Steps.take;
import static leveret.interop.Steps.text;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** What a consumer sees: prefetch, every way to settle a delivery, gets, cancels, and messages that come back. */
final class Consuming {
    private Consuming() {}

    static void tour(Connection connection, Tour.Connecting connect) {
        confirming(connection, "prefetch holds deliveries back until one is acked", Consuming::prefetch);
        confirming(connection, "prefetch of the channel is shared by its consumers", Consuming::sharedPrefetch);
        step("one ack settles every delivery up to its tag", () -> ackMultiple(connection));
        confirming(connection, "nacked messages come back redelivered and in their order", Consuming::nackMultiple);
        confirming(connection, "a rejected message goes to the dead-letter exchange with its x-death",
                Consuming::deadLetter);
        confirming(connection, "an expired message goes to the dead-letter exchange", Consuming::expiry);
        confirming(connection, "get fetches one message at a time and says when there is none", Consuming::polling);
        step("deliveries of a closed channel come back to another one", () -> orphans(connection));
        confirming(connection, "a cancelled consumer keeps its unacked delivery and gets no other",
                Consuming::cancel);
        confirming(connection, "a consumer hears that its queue was deleted", Consuming::cancelNotification);
        confirming(connection, "the consumer with the higher priority is served first", Consuming::consumerPriority);
        confirming(connection, "a priority queue gives out the highest priority first", Consuming::messagePriority);
        step("an exclusive server-named queue leaves with its connection", () -> serverNamed(connection, connect));
    }

    private static void confirming(Connection connection, String sentence, Steps.OnChannel play) {
        step(sentence, () -> onConfirmChannel(connection, play));
    }

    private static void prefetch(Channel channel) throws Exception {
        String queue = queueWith(channel, "prefetch", null, "a", "b", "c", "d", "e");
        channel.basicQos(2);
        BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
        List<Delivery> taken = new ArrayList<>(take(deliveries, 2, "two deliveries"));
        equal(channel.messageCount(queue), 3L, "messages held back");
        equal(deliveries.size(), 0, "deliveries beyond the prefetch");
        channel.basicAck(tag(taken.get(0)), false);
        taken.add(next(deliveries, "the third delivery"));
        equal(bodies(taken), List.of("a", "b", "c"), "the deliveries");
        equal(channel.messageCount(queue), 2L, "messages held back");
    }

    private static void sharedPrefetch(Channel channel) throws Exception {
        String left = queueWith(channel, "left", null, "a", "b");
        String right = queueWith(channel, "right", null, "c", "d");
        channel.basicQos(3, true);
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(left, false, (tag, delivery) -> deliveries.add(delivery), tag -> {});
        channel.basicConsume(right, false, (tag, delivery) -> deliveries.add(delivery), tag -> {});
        take(deliveries, 3, "three deliveries");
        equal(channel.messageCount(left) + channel.messageCount(right), 1L, "messages held back");
        channel.basicAck(0, true);
        next(deliveries, "the fourth delivery");
    }

    private static void ackMultiple(Connection connection) throws Exception {
        onConfirmChannel(connection, publisher -> {
            String queue = queueWith(publisher, "multiple", null, "a", "b", "c", "d");
            onChannel(connection, channel -> {
                List<Delivery> deliveries = take(consume(channel, queue, false), 4, "four deliveries");
                equal(deliveries.stream().map(Steps::tag).toList(), List.of(1L, 2L, 3L, 4L), "the tags");
                channel.basicAck(3, true);
            });
            GetResponse left = publisher.basicGet(queue, true);
            equal(text(left.getBody()), "d", "what was left");
            equal(left.getMessageCount(), 0, "how many more were left");
        });
    }

    private static void nackMultiple(Channel channel) throws Exception {
        String queue = queueWith(channel, "nacked", null, "a", "b", "c");
        BlockingQueue<Delivery> deliveries = consume(channel, queue, false);
        List<Delivery> first = take(deliveries, 3, "three deliveries");
        equal(first.stream().anyMatch(Steps::redelivered), false, "redelivered the first time");
        channel.basicNack(tag(first.get(2)), true, true);
        List<Delivery> second = take(deliveries, 3, "three deliveries again");
        equal(bodies(second), List.of("a", "b", "c"), "the deliveries");
        equal(second.stream().allMatch(Steps::redelivered), true, "redelivered the second time");
        channel.basicReject(tag(second.get(0)), true);
        equal(text(next(deliveries, "the rejected delivery").getBody()), "a", "the rejected delivery");
        channel.basicAck(0, true);
        equal(channel.messageCount(queue), 0L, "messages in the queue");
    }

    private static void deadLetter(Channel channel) throws Exception {
        String graveyard = exclusive(channel, "graveyard", null);
        Map<String, Object> letters = Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", graveyard);
        String queue = queueWith(channel, "mortal", letters, "poison");
        channel.basicReject(channel.basicGet(queue, false).getEnvelope().getDeliveryTag(), false);
        Delivery dead = next(consume(channel, graveyard, true), "the dead letter");
        equal(text(dead.getBody()), "poison", "the body");
        Map<?, ?> death = firstDeath(dead);
        equal(death.get("queue").toString(), queue, "the queue in x-death");
        equal(death.get("reason").toString(), "rejected", "the reason in x-death");
        equal(death.get("count"), 1L, "the count in x-death");
        equal(death.get("exchange").toString(), "", "the exchange in x-death");
        equal(death.get("routing-keys").toString(), "[" + queue + "]", "the routing keys in x-death");
    }

    private static Map<?, ?> firstDeath(Delivery dead) {
        List<?> deaths = (List<?>) dead.getProperties().getHeaders().get("x-death");
        return (Map<?, ?>) deaths.get(0);
    }

    private static void expiry(Channel channel) throws Exception {
        String graveyard = exclusive(channel, "expired", null);
        BlockingQueue<Delivery> dead = consume(channel, graveyard, true);
        String queue = exclusive(channel, "hasty",
                Map.of("x-dead-letter-exchange", "", "x-dead-letter-routing-key", graveyard));
        var hasty = new AMQP.BasicProperties.Builder().expiration("20").build();
        channel.basicPublish("", queue, hasty, bytes("late"));
        Delivery expired = next(dead, "the expired message");
        equal(firstDeath(expired).get("reason").toString(), "expired", "the reason in x-death");
        equal(firstDeath(expired).get("original-expiration").toString(), "20", "the original expiration");
        equal(expired.getProperties().getExpiration(), null, "the expiration of the dead letter");
    }

    private static void polling(Channel channel) throws Exception {
        String queue = queueWith(channel, "polled", null, "a", "b");
        GetResponse first = channel.basicGet(queue, false);
        equal(text(first.getBody()), "a", "the first message");
        equal(first.getMessageCount(), 1, "how many more there are");
        channel.basicNack(first.getEnvelope().getDeliveryTag(), false, true);
        GetResponse again = channel.basicGet(queue, false);
        equal(text(again.getBody()), "a", "the first message again");
        equal(again.getEnvelope().isRedeliver(), true, "redelivered");
        channel.basicAck(again.getEnvelope().getDeliveryTag(), false);
        equal(text(channel.basicGet(queue, true).getBody()), "b", "the second message");
        equal(channel.basicGet(queue, false), null, "a message in an empty queue");
    }

    private static void orphans(Connection connection) throws Exception {
        onConfirmChannel(connection, publisher -> {
            String queue = queueWith(publisher, "orphans", null, "a", "b");
            onChannel(connection, channel -> take(consume(channel, queue, false), 2, "both deliveries"));
            List<Delivery> back = take(consume(publisher, queue, true), 2, "both deliveries again");
            equal(bodies(back), List.of("a", "b"), "the deliveries");
            equal(back.stream().allMatch(Steps::redelivered), true, "redelivered");
        });
    }

    private static void cancel(Channel channel) throws Exception {
        String queue = queueWith(channel, "cancelled", null, "a");
        BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, "mine", (tag, delivery) -> deliveries.add(delivery), tag -> {});
        Delivery held = next(deliveries, "the delivery");
        channel.basicCancel("mine");
        queueWith(channel, "cancelled", null, "b");
        AMQP.Queue.DeclareOk state = channel.queueDeclarePassive(queue);
        equal(List.of(state.getMessageCount(), state.getConsumerCount()), List.of(1, 0), "messages and consumers");
        channel.basicAck(tag(held), false);
        equal(text(channel.basicGet(queue, true).getBody()), "b", "the message that stayed");
        equal(deliveries.size(), 0, "deliveries after the cancel");
    }

    private static void cancelNotification(Channel channel) throws Exception {
        String queue = channel.queueDeclare(named("short-lived"), false, false, false, null).getQueue();
        BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, false, "orphan", (tag, delivery) -> {}, cancelled::add);
        channel.queueDelete(queue);
        equal(next(cancelled, "the cancel"), "orphan", "the consumer tag");
    }

    private static void consumerPriority(Channel channel) throws Exception {
        String queue = exclusive(channel, "ranks", null);
        BlockingQueue<Delivery> low = consume(channel, queue, true, Map.of("x-priority", 1));
        BlockingQueue<Delivery> high = consume(channel, queue, true, Map.of("x-priority", 5));
        queueWith(channel, "ranks", null, "a", "b", "c");
        equal(bodies(take(high, 3, "three deliveries")), List.of("a", "b", "c"), "the deliveries");
        equal(low.size(), 0, "deliveries to the other consumer");
    }

    private static void messagePriority(Channel channel) throws Exception {
        String queue = exclusive(channel, "priorities", Map.of("x-max-priority", 5));
        for (int priority : new int[] {0, 5, 3}) {
            var properties = new AMQP.BasicProperties.Builder().priority(priority).build();
            channel.basicPublish("", queue, properties, bytes("" + priority));
        }
        channel.waitForConfirmsOrDie(Steps.PATIENCE_S * 1000);
        equal(bodies(take(consume(channel, queue, true), 3, "three deliveries")), List.of("5", "3", "0"),
                "the deliveries");
    }

    private static void serverNamed(Connection connection, Tour.Connecting connect) throws Exception {
        Connection other = connect.with(factory -> {});
        String queue = other.createChannel().queueDeclare().getQueue();
        equal(queue.startsWith("amq.gen-"), true, "the server's name begins with amq.gen-");
        expectChannelError(connection, AMQP.RESOURCE_LOCKED, "cannot obtain exclusive access to locked queue",
                channel -> channel.queueDeclarePassive(queue));
        other.close();
        expectChannelError(connection, AMQP.NOT_FOUND, "no queue '" + queue + "' in vhost '/'",
                channel -> channel.queueDeclarePassive(queue));
    }
}

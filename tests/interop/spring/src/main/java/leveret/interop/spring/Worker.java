package leveret.interop.spring;

import com.rabbitmq.client.Channel;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.rabbit.annotation.RabbitListener;

/** The listener: notes each delivery, then does with it what the scenario says. */
class Worker {
    final BlockingQueue<Delivered> deliveries = new LinkedBlockingQueue<>();

    volatile Job job = (delivered, channel) -> null;

    /** One call of the listener; a retry in Spring's memory is another call of the same delivery. */
    record Delivered(String body, long tag, boolean redelivered) {
        static Delivered of(Message message) {
            var properties = message.getMessageProperties();
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            return new Delivered(body, properties.getDeliveryTag(), properties.isRedelivered());
        }
    }

    interface Job {
        /** Returns the answer to a request, or null. */
        String run(Delivered delivered, Channel channel) throws Exception;
    }

    @RabbitListener(queues = "#{@work.name}")
    String receive(Message message, Channel channel) throws Exception {
        Delivered delivered = Delivered.of(message);
        try {
            return job.run(delivered, channel);
        } finally {
            deliveries.add(delivered);
        }
    }
}

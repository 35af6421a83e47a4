package leveret.interop.spring;

import static leveret.interop.spring.Steps.equal;
import static leveret.interop.spring.Steps.next;

import java.util.Map;
import java.util.UUID;
import org.springframework.amqp.core.Message;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitAdmin;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.RabbitListenerEndpointRegistry;
import org.springframework.boot.builder.SpringApplicationBuilder;
import org.springframework.context.ConfigurableApplicationContext;

/** The application while it runs with some profiles, and what a scenario does with it; its queues leave with it. */
final class Running implements AutoCloseable {
    private final ConfigurableApplicationContext context;

    private Running(ConfigurableApplicationContext context) {
        this.context = context;
    }

    static Running with(String url, String... profiles) {
        Map<String, Object> settings = Map.of(
                "spring.rabbitmq.addresses", url,
                "tour.run", UUID.randomUUID().toString().substring(0, 8));
        return new Running(new SpringApplicationBuilder(Application.class)
                .profiles(profiles).properties(settings).logStartupInfo(false).run());
    }

    RabbitTemplate template() {
        return context.getBean(RabbitTemplate.class);
    }

    RabbitAdmin admin() {
        return context.getBean(RabbitAdmin.class);
    }

    Worker worker() {
        return context.getBean(Worker.class);
    }

    String queue(String bean) {
        return context.getBean(bean, Queue.class).getName();
    }

    String exchange() {
        return context.getBean("exchange", org.springframework.amqp.core.Exchange.class).getName();
    }

    void send(String body) {
        template().convertAndSend(exchange(), Application.KEY, body, new CorrelationData(body));
    }

    /** What the listener was given next, which must be this delivery. */
    void expectDelivery(String body, boolean redelivered) throws InterruptedException {
        Worker.Delivered delivered = next(worker().deliveries, "the delivery of " + body);
        equal(delivered.body(), body, "the body");
        equal(delivered.redelivered(), redelivered, "redelivered");
    }

    Message awaitMessage(String bean) {
        Message message = template().receive(queue(bean), Steps.PATIENCE_S * 1000);
        if (message == null) {
            throw new AssertionError("no message came to " + queue(bean));
        }
        return message;
    }

    /** Stops the listener, which gives back what it has not settled, and says how much the queue then holds. */
    int leftAfterStop() {
        context.getBean(RabbitListenerEndpointRegistry.class).stop();
        return messages("work");
    }

    int messages(String bean) {
        return admin().getQueueInfo(queue(bean)).getMessageCount();
    }

    @Override
    public void close() {
        context.getBean(RabbitListenerEndpointRegistry.class).stop();
        for (Queue queue : context.getBeansOfType(Queue.class).values()) {
            admin().deleteQueue(queue.getName());
        }
        for (var exchange : context.getBeansOfType(org.springframework.amqp.core.Exchange.class).values()) {
            admin().deleteExchange(exchange.getName());
        }
        context.close();
    }
}

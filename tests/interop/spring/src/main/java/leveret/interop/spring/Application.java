package leveret.interop.spring;

import java.util.Map;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.DirectExchange;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.rabbit.config.ContainerCustomizer;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.retry.ImmediateRequeueMessageRecoverer;
import org.springframework.amqp.rabbit.retry.MessageRecoverer;
import org.springframework.amqp.rabbit.retry.RepublishMessageRecoverer;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.annotation.Import;
import org.springframework.context.annotation.Profile;

/**
 * An ordinary Spring Boot application with one exchange, one queue to work on, a queue for its dead letters and one
 * for what the error exchange gets. What differs between scenarios stands in application.yml and in the profiles.
 */
@Configuration(proxyBeanMethods = false)
@EnableAutoConfiguration
@Import(Worker.class)
public class Application {
    static final String KEY = "work";
    static final String ERROR_KEY = "error.routing.key";

    private final String run;

    Application(@Value("${tour.run}") String run) {
        this.run = "interop.spring." + run + ".";
    }

    @Bean
    DirectExchange exchange() {
        return new DirectExchange(run + "test.direct");
    }

    @Bean
    Queue deadLetters() {
        return QueueBuilder.durable(run + "dead").build();
    }

    @Bean
    Queue work() {
        return QueueBuilder.durable(run + "work").deadLetterExchange("").deadLetterRoutingKey(run + "dead").build();
    }

    @Bean
    Binding workBinding(Queue work, DirectExchange exchange) {
        return BindingBuilder.bind(work).to(exchange).with(KEY);
    }

    @Bean
    DirectExchange errorExchange() {
        return new DirectExchange(run + "error.direct");
    }

    @Bean
    Queue errorQueue() {
        return new Queue(run + "error.queue");
    }

    @Bean
    Binding errorBinding(Queue errorQueue, DirectExchange errorExchange) {
        return BindingBuilder.bind(errorQueue).to(errorExchange).with(ERROR_KEY);
    }

    @Bean
    @Profile("republish")
    MessageRecoverer republishing(RabbitTemplate template, DirectExchange errorExchange) {
        return new RepublishMessageRecoverer(template, errorExchange.getName(), ERROR_KEY);
    }

    @Bean
    @Profile("requeue")
    MessageRecoverer requeueing() {
        return new ImmediateRequeueMessageRecoverer();
    }

    /** Spring waits a second to stop and five to reconnect; the tour has less time than that. */
    @Bean
    ContainerCustomizer<SimpleMessageListenerContainer> impatience() {
        return container -> {
            container.setReceiveTimeout(50);
            container.setRecoveryInterval(50);
            container.setConsumerArguments(Map.of("x-priority", 1));
        };
    }
}

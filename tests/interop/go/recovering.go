// A connection that is cut in the middle: by hand, as most programs do it, and by the library's own recovery.
// The cut itself is made by the test that runs this program: it owns the proxy behind the second URL and
// cuts it when it reads the line "cut".

package main

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func recovering(proxiedURL string) {
	step("a cut connection is noticed, and a new one gets the unacked delivery again", func() { byHand(proxiedURL) })
	step("a connection with recovery comes back with its queue, binding and consumer", func() { recovery(proxiedURL) })
}

func byHand(proxiedURL string) {
	connection := must(amqp.Dial(proxiedURL))
	lost := connection.NotifyClose(make(chan *amqp.Error, 1))
	onConfirmChannel(connection, func(channel *amqp.Channel) {
		queue := must(channel.QueueDeclare(named("by-hand"), true, false, false, false, nil)).Name
		publish(channel, queue, amqp.Publishing{Body: []byte("before"), DeliveryMode: amqp.Persistent})
		next(consume(channel, queue, false), "the delivery")
		fmt.Println("cut")
		next(lost, "the end of the connection")
	})
	again := must(amqp.Dial(proxiedURL))
	defer again.Close()
	onChannel(again, func(channel *amqp.Channel) {
		delivery := next(consume(channel, named("by-hand"), false), "the delivery again")
		equal([]any{string(delivery.Body), delivery.Redelivered}, []any{"before", true}, "the delivery")
		check(delivery.Ack(false))
		equal(must(channel.QueueDelete(named("by-hand"), false, false, false)), 0, "messages left")
	})
}

func recovery(proxiedURL string) {
	patient := &amqp.ReconnectionConfig{MaxRetryCount: 50, RetryInterval: 50 * time.Millisecond}
	connection := must(amqp.DialConfig(proxiedURL, amqp.Config{
		Recovery: &amqp.Recovery{ReconnectionConfig: patient},
	}))
	defer connection.Close()
	channel := must(connection.Channel())
	queue := exclusive(channel, "recovered", nil)
	check(channel.QueueBind(queue, named("key"), "amq.topic", false, nil))
	deliveries := consume(channel, queue, true)
	send := func(body string) {
		check(channel.Publish("amq.topic", named("key"), false, false, amqp.Publishing{Body: []byte(body)}))
	}
	send("before")
	equal(string(next(deliveries, "the first delivery").Body), "before", "the body")
	states := make(chan *amqp.StateChanged, 16)
	connection.NotifyStateChange(states)
	fmt.Println("cut")
	for next(states, "the connection to be open again").To != amqp.StateOpen {
	}
	send("after")
	equal(string(next(deliveries, "a delivery after the cut").Body), "after", "the body")
}

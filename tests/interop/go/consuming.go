// What a consumer sees: prefetch, every way to settle a delivery, gets, cancels, and messages that come back.

package main

import (
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

func consuming(connection *amqp.Connection, dial dialer) {
	confirming := func(sentence string, play func(*amqp.Channel)) {
		step(sentence, func() { onConfirmChannel(connection, play) })
	}
	confirming("prefetch holds deliveries back until one is acked", prefetch)
	step("one ack settles every delivery up to its tag", func() { ackMultiple(connection) })
	confirming("nacked messages come back redelivered and in their order", nackMultiple)
	confirming("a rejected message goes to the dead-letter exchange with its x-death", deadLetter)
	confirming("an expired message goes to the dead-letter exchange", expiry)
	confirming("get fetches one message at a time and says when there is none", polling)
	step("deliveries of a closed channel come back to another one", func() { orphans(connection) })
	confirming("a cancelled consumer keeps its unacked delivery and gets no other", cancel)
	confirming("a consumer hears that its queue was deleted", cancelNotification)
	confirming("the consumer with the higher priority is served first", consumerPriority)
	confirming("a priority queue gives out the highest priority first", messagePriority)
	step("an exclusive server-named queue leaves with its connection", func() { serverNamed(connection, dial) })
}

func prefetch(channel *amqp.Channel) {
	queue := queueWith(channel, "prefetch", nil, "a", "b", "c", "d", "e")
	check(channel.Qos(2, 0, false))
	deliveries := consume(channel, queue, false)
	taken := take(deliveries, 2, "two deliveries")
	equal(ready(channel, queue), 3, "messages held back")
	equal(len(deliveries), 0, "deliveries beyond the prefetch")
	check(taken[0].Ack(false))
	taken = append(taken, next(deliveries, "the third delivery"))
	equal(bodiesOf(taken), []string{"a", "b", "c"}, "the deliveries")
	equal(ready(channel, queue), 2, "messages held back")
}

func ackMultiple(connection *amqp.Connection) {
	onConfirmChannel(connection, func(publisher *amqp.Channel) {
		queue := queueWith(publisher, "multiple", nil, "a", "b", "c", "d")
		onChannel(connection, func(channel *amqp.Channel) {
			deliveries := take(consume(channel, queue, false), 4, "four deliveries")
			for index, delivery := range deliveries {
				equal(delivery.DeliveryTag, uint64(index+1), "the delivery tag")
			}
			check(deliveries[2].Ack(true))
		})
		left, _, err := publisher.Get(queue, true)
		check(err)
		equal([]any{string(left.Body), left.MessageCount}, []any{"d", uint32(0)}, "what was left")
	})
}

func nackMultiple(channel *amqp.Channel) {
	queue := queueWith(channel, "nacked", nil, "a", "b", "c")
	deliveries := consume(channel, queue, false)
	first := take(deliveries, 3, "three deliveries")
	equal(first[0].Redelivered, false, "redelivered the first time")
	check(first[2].Nack(true, true))
	second := take(deliveries, 3, "three deliveries again")
	equal(bodiesOf(second), []string{"a", "b", "c"}, "the deliveries")
	for _, delivery := range second {
		equal(delivery.Redelivered, true, "redelivered the second time")
	}
	check(second[0].Reject(true))
	equal(string(next(deliveries, "the rejected delivery").Body), "a", "the rejected delivery")
	check(channel.Ack(0, true))
	equal(ready(channel, queue), 0, "messages in the queue")
}

func deadLetter(channel *amqp.Channel) {
	graveyard := exclusive(channel, "graveyard", nil)
	letters := amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard}
	queue := queueWith(channel, "mortal", letters, "poison")
	message, _, err := channel.Get(queue, false)
	check(err)
	check(message.Reject(false))
	dead := next(consume(channel, graveyard, true), "the dead letter")
	equal(string(dead.Body), "poison", "the body")
	death := firstDeath(dead)
	delete(death, "time")
	equal(death, amqp.Table{
		"queue": queue, "reason": "rejected", "count": int64(1), "exchange": "", "routing-keys": []any{queue},
	}, "x-death")
	equal(dead.Headers["x-first-death-reason"], "rejected", "x-first-death-reason")
}

func firstDeath(message amqp.Delivery) amqp.Table {
	return message.Headers["x-death"].([]any)[0].(amqp.Table)
}

func expiry(channel *amqp.Channel) {
	graveyard := exclusive(channel, "expired", nil)
	dead := consume(channel, graveyard, true)
	letters := amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": graveyard, "x-message-ttl": 20,
	}
	queue := queueWith(channel, "hasty", letters, "late")
	death := firstDeath(next(dead, "the expired message"))
	equal([]any{death["queue"], death["reason"]}, []any{queue, "expired"}, "x-death")
}

func polling(channel *amqp.Channel) {
	queue := queueWith(channel, "polled", nil, "a", "b")
	first, _, err := channel.Get(queue, false)
	check(err)
	equal([]any{string(first.Body), first.MessageCount}, []any{"a", uint32(1)}, "the first message")
	check(first.Nack(false, true))
	again, _, err := channel.Get(queue, false)
	check(err)
	equal([]any{string(again.Body), again.Redelivered}, []any{"a", true}, "the first message again")
	check(again.Ack(false))
	second, _, err := channel.Get(queue, true)
	check(err)
	equal([]any{string(second.Body), second.Redelivered}, []any{"b", false}, "the second message")
	_, some, err := channel.Get(queue, false)
	check(err)
	equal(some, false, "a message in an empty queue")
}

func orphans(connection *amqp.Connection) {
	onConfirmChannel(connection, func(publisher *amqp.Channel) {
		queue := queueWith(publisher, "orphans", nil, "a", "b")
		onChannel(connection, func(channel *amqp.Channel) {
			take(consume(channel, queue, false), 2, "both deliveries")
		})
		back := take(consume(publisher, queue, true), 2, "both deliveries again")
		equal(bodiesOf(back), []string{"a", "b"}, "the deliveries")
		equal(back[0].Redelivered && back[1].Redelivered, true, "redelivered")
	})
}

func cancel(channel *amqp.Channel) {
	queue := queueWith(channel, "cancelled", nil, "a")
	deliveries := must(channel.Consume(queue, "mine", false, false, false, false, nil))
	held := next(deliveries, "the delivery")
	equal(held.ConsumerTag, "mine", "the consumer tag")
	check(channel.Cancel("mine", false))
	queueWith(channel, "cancelled", nil, "b")
	state := must(channel.QueueDeclarePassive(queue, false, false, true, false, nil))
	equal(state, amqp.Queue{Name: queue, Messages: 1, Consumers: 0}, "the queue")
	check(held.Ack(false))
	if _, open := <-deliveries; open {
		panic("a delivery after the cancel")
	}
}

func cancelNotification(channel *amqp.Channel) {
	queue := must(channel.QueueDeclare(named("short-lived"), false, false, false, false, nil)).Name
	cancelled := channel.NotifyCancel(make(chan string, 1))
	must(channel.Consume(queue, "orphan", false, false, false, false, nil))
	must(channel.QueueDelete(queue, false, false, false))
	equal(next(cancelled, "the cancel"), "orphan", "the consumer tag")
}

func consumerPriority(channel *amqp.Channel) {
	queue := exclusive(channel, "ranks", nil)
	ranked := func(priority int) <-chan amqp.Delivery {
		return must(channel.Consume(queue, "", true, false, false, false, amqp.Table{"x-priority": priority}))
	}
	low, high := ranked(1), ranked(5)
	queueWith(channel, "ranks", nil, "a", "b", "c")
	equal(bodiesOf(take(high, 3, "three deliveries")), []string{"a", "b", "c"}, "the deliveries")
	equal(len(low), 0, "deliveries to the other consumer")
}

func messagePriority(channel *amqp.Channel) {
	queue := exclusive(channel, "priorities", amqp.Table{"x-max-priority": 5})
	for priority, body := range map[uint8]string{0: "none", 5: "high", 3: "middle"} {
		publish(channel, queue, amqp.Publishing{Body: []byte(body), Priority: priority})
	}
	deliveries := take(consume(channel, queue, true), 3, "three deliveries")
	equal(bodiesOf(deliveries), []string{"high", "middle", "none"}, "the deliveries")
}

func serverNamed(connection *amqp.Connection, dial dialer) {
	other := must(dial(nil))
	queue := must(must(other.Channel()).QueueDeclare("", false, false, true, false, nil)).Name
	equal(strings.HasPrefix(queue, "amq.gen-"), true, "the server's name begins with amq.gen-")
	look := func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclarePassive(queue, false, false, false, false, nil)
		return err
	}
	expectChannelError(connection, amqp.ResourceLocked, "cannot obtain exclusive access to locked queue", look)
	check(other.Close())
	expectChannelError(connection, amqp.NotFound, "no queue '"+queue+"' in vhost '/'", look)
}

// What a publisher sees: confirms, returns, refusals, transactions, bodies and properties that arrive as sent.

package main

import (
	"bytes"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func publishing(connection *amqp.Connection, dial dialer) {
	step("declared exchanges route what is published to bound queues", func() { onConfirmChannel(connection, routing) })
	step("a thousand persistent messages are confirmed", func() { onConfirmChannel(connection, confirms) })
	step("a mandatory message without a queue comes back before its confirm", func() {
		onConfirmChannel(connection, returnsFirst)
	})
	step("a full queue that rejects publishes nacks them", func() { onConfirmChannel(connection, refusal) })
	step("a transaction shows its messages after the commit and forgets them after a rollback", func() {
		onChannel(connection, transaction)
	})
	step("bodies of no byte and of three MiB arrive whole", func() { onConfirmChannel(connection, bodies) })
	step("a body of 100 kB arrives whole over frames of 4 kB", func() { smallFrames(dial) })
	step("headers of all types and all properties arrive as they were sent", func() {
		onConfirmChannel(connection, properties)
	})
}

func routing(channel *amqp.Channel) {
	queue := exclusive(channel, "routed", nil)
	check(channel.ExchangeDeclare(named("topic"), "topic", true, false, false, false, nil))
	check(channel.ExchangeDeclare(named("fanout"), "fanout", false, false, false, false, nil))
	check(channel.ExchangeDeclare(named("headers"), "headers", false, false, false, false, nil))
	check(channel.QueueBind(queue, "stock.*.#", named("topic"), false, nil))
	check(channel.ExchangeBind(named("topic"), "", named("fanout"), false, nil))
	pattern := amqp.Table{"x-match": "all", "colour": "grey", "legs": int32(4)}
	check(channel.QueueBind(queue, "", named("headers"), false, pattern))
	deliveries := consume(channel, queue, true)
	send := func(exchange, key, body string, headers amqp.Table) {
		check(channel.Publish(named(exchange), key, false, false, amqp.Publishing{Body: []byte(body), Headers: headers}))
	}
	send("topic", "stock.de.frankfurt", "topic", nil)
	send("topic", "weather.de", "not bound", nil)
	send("fanout", "stock.fr", "through an exchange", nil)
	send("headers", "", "headers", amqp.Table{"colour": "grey", "legs": int32(4)})
	arrived := bodiesOf(take(deliveries, 3, "deliveries"))
	equal(arrived, []string{"topic", "through an exchange", "headers"}, "what arrived")
	check(channel.QueueUnbind(queue, "stock.*.#", named("topic"), nil))
	check(channel.ExchangeUnbind(named("topic"), "", named("fanout"), false, nil))
	for _, part := range []string{"topic", "fanout", "headers"} {
		check(channel.ExchangeDelete(named(part), false, false))
	}
}

func confirms(channel *amqp.Channel) {
	queue := must(channel.QueueDeclare(named("confirmed"), true, false, false, false, nil)).Name
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation, 1000))
	for number := 1; number <= 1000; number++ {
		message := amqp.Publishing{Body: []byte(fmt.Sprint(number)), DeliveryMode: amqp.Persistent}
		check(channel.Publish("", queue, false, false, message))
	}
	for number := 1; number <= 1000; number++ {
		confirmed := next(confirmations, "a confirm")
		equal(confirmed, amqp.Confirmation{DeliveryTag: uint64(number), Ack: true}, "the confirm")
	}
	equal(must(channel.QueueDelete(queue, false, false, false)), 1000, "messages in the deleted queue")
}

func returnsFirst(channel *amqp.Channel) {
	// Without room in these channels the library hands over one event at a time, in the order of the wire.
	returns := channel.NotifyReturn(make(chan amqp.Return))
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation))
	message := amqp.Publishing{Body: []byte("come back")}
	check(channel.Publish("amq.direct", named("nowhere"), true, false, message))
	select {
	case returned := <-returns:
		equal([]any{returned.ReplyCode, returned.ReplyText}, []any{uint16(312), "NO_ROUTE"}, "the reason")
		equal([]any{returned.Exchange, returned.RoutingKey}, []any{"amq.direct", named("nowhere")}, "the address")
		equal(string(returned.Body), "come back", "the body")
	case <-confirmations:
		panic("the confirm came first")
	case <-time.After(patience):
		panic("nothing came back")
	}
	equal(next(confirmations, "the confirm"), amqp.Confirmation{DeliveryTag: 1, Ack: true}, "the confirm")
}

func refusal(channel *amqp.Channel) {
	limits := amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"}
	queue := queueWith(channel, "full", limits, "first")
	equal(publish(channel, queue, amqp.Publishing{Body: []byte("second")}), false, "the confirm")
	equal(ready(channel, queue), 1, "messages in the queue")
}

func transaction(channel *amqp.Channel) {
	queue := exclusive(channel, "tx", nil)
	check(channel.Tx())
	check(channel.Publish("", queue, false, false, amqp.Publishing{Body: []byte("kept")}))
	equal(ready(channel, queue), 0, "messages before the commit")
	check(channel.TxCommit())
	equal(ready(channel, queue), 1, "messages after the commit")
	check(channel.Publish("", queue, false, false, amqp.Publishing{Body: []byte("forgotten")}))
	check(channel.TxRollback())
	message, _, err := channel.Get(queue, false)
	check(err)
	equal(string(message.Body), "kept", "the message")
	check(message.Ack(false))
	check(channel.TxRollback())
	check(channel.Recover(true))
	again, _, err := channel.Get(queue, false)
	check(err)
	equal([]any{string(again.Body), again.Redelivered}, []any{"kept", true}, "the message again")
	check(again.Ack(false))
	check(channel.TxCommit())
	equal(must(channel.QueueDelete(queue, false, false, false)), 0, "messages after the ack")
}

func bodies(channel *amqp.Channel) {
	queue := exclusive(channel, "bodies", nil)
	large := bytes.Repeat([]byte("leveret"), 3*1024*1024/7+7)
	publish(channel, queue, amqp.Publishing{})
	publish(channel, queue, amqp.Publishing{Body: large, DeliveryMode: amqp.Persistent})
	arrived := take(consume(channel, queue, true), 2, "both bodies")
	equal(len(arrived[0].Body), 0, "the empty body")
	equal(bytes.Equal(arrived[1].Body, large), true, "the large body is the same")
}

func smallFrames(dial dialer) {
	connection := must(dial(func(config *amqp.Config) { config.FrameSize = 4096 }))
	defer connection.Close()
	onConfirmChannel(connection, func(channel *amqp.Channel) {
		body := string(bytes.Repeat([]byte("x"), 100_000))
		queue := queueWith(channel, "small-frames", nil, body)
		message, _, err := channel.Get(queue, true)
		check(err)
		equal(string(message.Body) == body, true, "the body is the same")
	})
}

var headers = amqp.Table{
	"nothing": nil, "yes": true, "no": false, "text": "naïve – 兔", "bytes": []byte{0, 255, 10},
	"list":  []any{int32(1), "two", []any{int64(3)}},
	"table": amqp.Table{"inner": amqp.Table{"most": "here"}, "none": amqp.Table{}},
	"int8":  int8(-128), "uint8": byte(255), "int16": int16(-32768), "uint16": uint16(65535),
	"int32": int32(-2147483648), "uint32": uint32(4294967295), "int64": int64(-1 << 63),
	"float": float32(0.5), "double": 0.1, "decimal": amqp.Decimal{Scale: 2, Value: 314},
	"time": time.Unix(1_700_000_000, 0),
}

func properties(channel *amqp.Channel) {
	queue := exclusive(channel, "properties", nil)
	sent := amqp.Publishing{
		Headers: headers, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent,
		Priority: 7, CorrelationId: "c-1", ReplyTo: "somewhere", Expiration: "600000", MessageId: "m-1",
		Timestamp: time.Unix(1_700_000_001, 0), Type: "kind", UserId: "guest", AppId: "tour", Body: []byte("body"),
	}
	publish(channel, queue, sent)
	got, _, err := channel.Get(queue, true)
	check(err)
	for name, value := range headers {
		equal(got.Headers[name], value, "header "+name)
	}
	equal(len(got.Headers), len(headers), "the number of headers")
	arrived := amqp.Publishing{
		Headers: headers, ContentType: got.ContentType, ContentEncoding: got.ContentEncoding,
		DeliveryMode: got.DeliveryMode, Priority: got.Priority, CorrelationId: got.CorrelationId,
		ReplyTo: got.ReplyTo, Expiration: got.Expiration, MessageId: got.MessageId, Timestamp: got.Timestamp,
		Type: got.Type, UserId: got.UserId, AppId: got.AppId, Body: got.Body,
	}
	equal(arrived, sent, "the message")
}

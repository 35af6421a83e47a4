// What a client gets for its mistakes: codes and texts by the book, and a connection that goes on where it may.

package main

import (
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

func failing(connection *amqp.Connection, dial dialer) {
	step("a wrong password is refused with 403", func() {
		refused(dial, amqp.AccessRefused, func(config *amqp.Config) {
			config.SASL = []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "wrong"}}
		})
	})
	step("an unknown virtual host is refused with 530", func() {
		refused(dial, amqp.NotAllowed, func(config *amqp.Config) { config.Vhost = "nowhere" })
	})
	for _, mistake := range mistakes() {
		step(mistake.sentence, func() { expectChannelError(connection, mistake.code, mistake.text, mistake.play) })
	}
	step("a renewed secret is taken", func() { check(connection.UpdateSecret("guest", "renewed")) })
	step("a second ack of the same delivery closes the channel with 406", func() { doubleAck(connection) })
}

func refused(dial dialer, code int, change func(*amqp.Config)) {
	_, err := dial(change)
	var reason *amqp.Error
	if !errors.As(err, &reason) {
		panic(err)
	}
	equal(reason.Code, code, "the reply code")
}

type mistake struct {
	sentence string
	code     int
	text     string
	play     func(*amqp.Channel) error
}

func mistakes() []mistake {
	return []mistake{
		{
			"a missing queue closes the channel with 404", amqp.NotFound,
			"NOT_FOUND - no queue '" + named("missing") + "' in vhost '/'",
			func(channel *amqp.Channel) error {
				_, err := channel.Consume(named("missing"), "", false, false, false, false, nil)
				return err
			},
		},
		{
			"an exchange that is missing closes the channel with 404", amqp.NotFound,
			"NOT_FOUND - no exchange '" + named("no-exchange") + "' in vhost '/'",
			func(channel *amqp.Channel) error {
				check(channel.Confirm(false))
				return channel.Publish(named("no-exchange"), "key", false, false, amqp.Publishing{})
			},
		},
		{
			"an unknown delivery tag closes the channel with 406", amqp.PreconditionFailed,
			"PRECONDITION_FAILED - unknown delivery tag 100",
			func(channel *amqp.Channel) error { return channel.Ack(100, false) },
		},
		{
			"a queue declared again with another argument closes the channel with 406", amqp.PreconditionFailed,
			"inequivalent arg 'durable' for queue '" + named("typed") +
				"' in vhost '/': received 'true' but current is 'false'",
			func(channel *amqp.Channel) error {
				expiring := amqp.Table{"x-expires": 60_000}
				must(channel.QueueDeclare(named("typed"), false, false, false, false, expiring))
				_, err := channel.QueueDeclare(named("typed"), true, false, false, false, expiring)
				return err
			},
		},
		{
			"a confirm channel that wants transactions is closed with 406", amqp.PreconditionFailed,
			"cannot switch from confirm to tx mode",
			func(channel *amqp.Channel) error {
				check(channel.Confirm(false))
				return channel.Tx()
			},
		},
		{
			"a reserved name closes the channel with 403", amqp.AccessRefused,
			"ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'",
			func(channel *amqp.Channel) error {
				_, err := channel.QueueDeclare("amq.mine", false, false, false, false, nil)
				return err
			},
		},
	}
}

func doubleAck(connection *amqp.Connection) {
	onConfirmChannel(connection, func(channel *amqp.Channel) { queueWith(channel, "twice", nil, "once", "held") })
	queue := named("twice")
	expectChannelError(connection, amqp.PreconditionFailed, "PRECONDITION_FAILED - unknown delivery tag 1",
		func(channel *amqp.Channel) error {
			message, _, err := channel.Get(queue, false)
			check(err)
			_, _, err = channel.Get(queue, false)
			check(err)
			check(message.Ack(false))
			return message.Ack(false)
		})
	onChannel(connection, func(channel *amqp.Channel) {
		back, _, err := channel.Get(queue, true)
		check(err)
		equal([]any{string(back.Body), back.Redelivered}, []any{"held", true}, "what the channel held")
	})
}

// A tour of the broker with amqp091-go: tour URL PROXIED_URL
//
// Prints one line per step, "ok <sentence>" or "FAILED <sentence>: why", and exits with 0 when all came true.
// PROXIED_URL leads to the same broker through a proxy; the line "cut" asks whoever runs this to cut it.

package main

import (
	"os"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dialer opens a connection to the broker with the usual configuration, changed by the caller.
type dialer func(change func(*amqp.Config)) (*amqp.Connection, error)

func main() {
	url, proxiedURL := os.Args[1], os.Args[2]
	dial := func(change func(*amqp.Config)) (*amqp.Connection, error) {
		config := amqp.Config{}
		if change != nil {
			change(&config)
		}
		return amqp.DialConfig(url, config)
	}
	connection := must(dial(nil))
	publishing(connection, dial)
	consuming(connection, dial)
	failing(connection, dial)
	recovering(proxiedURL)
	check(connection.Close())
	if failures > 0 {
		os.Exit(1)
	}
}

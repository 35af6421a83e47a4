// rabbit-hole, a client of RabbitMQ's HTTP API, asks one broker for all that it can ask, and prints a line of
// JSON per call: its name, what came back, the error. What must come back is left to the test that runs this.
//
//	tour http://127.0.0.1:15672 VHOST NAME
//
// NAME is the name of the user and the virtual host that the program makes.
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"

	hole "github.com/michaelklishin/rabbit-hole/v3"
)

type none = struct{}

// told prints what a call has returned: of a response without a body its status.
func told[T any](call string, value T, err error) {
	line := map[string]any{"call": call, "value": value}
	if response, is := any(value).(*http.Response); is {
		delete(line, "value")
		if response != nil {
			line["value"] = response.StatusCode
		}
	}
	if err != nil {
		line = map[string]any{"call": call, "error": err.Error()}
	}
	text, failed := json.Marshal(line)
	if failed != nil {
		panic(failed)
	}
	fmt.Println(string(text))
}

func main() {
	address, vhost, name := os.Args[1], os.Args[2], os.Args[3]
	client, err := hole.NewClient(address, "guest", "guest")
	if err != nil {
		panic(err)
	}
	queues(client, vhost)
	messages(client, vhost)
	policies(client, vhost)
	users(client, vhost, name)
	vhosts(client, name)
	definitions(client, vhost, name)
	checks(client)
	end(client, vhost, name)
	wrong, _ := hole.NewClient(address, "guest", "wrong")
	_, err = wrong.Whoami()
	told("wrong password", none{}, err)
}

func queues(client *hole.Client, vhost string) {
	limited := hole.QueueSettings{Durable: true, Arguments: map[string]any{"x-max-length": 5}}
	response, err := client.DeclareQueue(vhost, "hole q", limited)
	told("declare queue", response, err)
	response, err = client.DeclareQueue(vhost, "hole q", limited)
	told("declare queue again", response, err)
	response, err = client.DeclareQueue(vhost, "hole q", hole.QueueSettings{})
	told("declare other queue", response, err)
	response, err = client.DeclareQueue(vhost, "hole s", hole.QueueSettings{Type: "stream", Durable: true})
	told("declare stream", response, err)
	response, err = client.DeclareExchange(vhost, "hole/x", hole.ExchangeSettings{Type: "topic", Durable: true})
	told("declare exchange", response, err)
	response, err = client.DeclareExchange(vhost, "hole/x", hole.ExchangeSettings{Type: "fanout"})
	told("declare other exchange", response, err)
	binding := hole.BindingInfo{
		Source: "hole/x", Destination: "hole q", DestinationType: "queue", RoutingKey: "a.*/b",
		Arguments: map[string]any{"one": 1},
	}
	response, err = client.DeclareBinding(vhost, binding)
	told("bind", response, err)
	bindings, err := client.ListQueueBindings(vhost, "hole q")
	told("queue bindings", bindings, err)
	bindings, err = client.ListExchangeBindingsWithSource(vhost, "hole/x")
	told("exchange bindings", bindings, err)
	bindings, err = client.ListQueueBindingsBetween(vhost, "hole/x", "hole q")
	told("bindings between", bindings, err)
	listed, err := client.ListQueuesIn(vhost)
	told("queues", names(listed, func(each hole.QueueInfo) any { return []any{each.Name, each.Type, each.Durable} }), err)
	paged, err := client.PagedListQueuesWithParametersIn(vhost, url.Values{"page": {"1"}, "page_size": {"1"}, "name": {"hole"}})
	told("page of queues", []int{paged.Page, paged.PageCount, paged.PageSize, paged.FilteredCount, paged.ItemCount}, err)
	queue, err := client.GetQueue(vhost, "hole q")
	if err == nil {
		told("queue", []any{queue.Name, queue.Vhost, queue.Durable, queue.AutoDelete, queue.Arguments}, err)
	}
	_, err = client.GetQueue(vhost, "nope")
	told("missing queue", none{}, err)
	exchanges, err := client.ListExchangesIn(vhost)
	told("exchanges", names(exchanges, func(each hole.ExchangeInfo) any { return []any{each.Name, each.Type} }), err)
	exchange, err := client.GetExchange(vhost, "hole/x")
	if err == nil {
		told("exchange", []any{exchange.Name, exchange.Type, exchange.Durable, exchange.Arguments}, err)
	}
	bindings[0].Vhost = vhost
	response, err = client.DeleteBinding(vhost, bindings[0])
	told("unbind", response, err)
	response, err = client.DeleteBinding(vhost, bindings[0])
	told("unbind again", response, err)
}

func names[T any](items []T, chosen func(T) any) []any {
	found := []any{}
	for _, item := range items {
		found = append(found, chosen(item))
	}
	return found
}

func messages(client *hole.Client, vhost string) {
	for _, message := range []hole.PublishOptions{
		{RoutingKey: "hole q", Payload: "hello", PayloadEncoding: "string", Properties: map[string]any{"priority": 3}},
		{RoutingKey: "nowhere", Payload: "aGVsbG8=", PayloadEncoding: "base64", Properties: map[string]any{}},
		{RoutingKey: "hole q", Payload: "x", PayloadEncoding: "nope", Properties: map[string]any{}},
	} {
		result, err := client.PublishToExchange(vhost, "amq.default", message)
		told("publish", result, err)
	}
	_, err := client.PublishToExchange(vhost, "nope", hole.PublishOptions{PayloadEncoding: "string", Properties: map[string]any{}})
	told("publish to nowhere", none{}, err)
	response, err := client.PurgeQueue(vhost, "hole q")
	told("purge", response, err)
	response, err = client.PurgeQueue(vhost, "nope")
	told("purge nothing", response, err)
}

func policies(client *hole.Client, vhost string) {
	policy := hole.Policy{Pattern: "^hole", ApplyTo: "queues", Priority: 2, Definition: hole.PolicyDefinition{"max-length": 9}}
	response, err := client.PutPolicy(vhost, "hole p", policy)
	told("put policy", response, err)
	shown, err := client.GetPolicy(vhost, "hole p")
	told("policy", shown, err)
	listed, err := client.ListPoliciesIn(vhost)
	told("policies", listed, err)
	policy.Definition = hole.PolicyDefinition{"max-length": "many"}
	response, err = client.PutPolicy(vhost, "hole p", policy)
	told("put wrong policy", response, err)
	operator := hole.OperatorPolicy{Pattern: "^hole", ApplyTo: "queues", Definition: hole.PolicyDefinition{"expires": 99000}}
	response, err = client.PutOperatorPolicy(vhost, "hole o", operator)
	told("put operator policy", response, err)
	operators, err := client.ListOperatorPoliciesIn(vhost)
	told("operator policies", operators, err)
	response, err = client.DeleteOperatorPolicy(vhost, "hole o")
	told("delete operator policy", response, err)
	response, err = client.DeletePolicy(vhost, "hole p")
	told("delete policy", response, err)
	_, err = client.GetPolicy(vhost, "hole p")
	told("missing policy", none{}, err)
	response, err = client.PutGlobalParameter("hole g", map[string]any{"a": 1})
	told("put global parameter", response, err)
	parameter, err := client.GetGlobalParameter("hole g")
	told("global parameter", parameter, err)
	response, err = client.DeleteGlobalParameter("hole g")
	told("delete global parameter", response, err)
}

func users(client *hole.Client, vhost string, name string) {
	settings := hole.UserSettings{Password: "secret", Tags: hole.UserTags{"monitoring", "policymaker"}}
	response, err := client.PutUser(name, settings)
	told("put user", response, err)
	user, err := client.GetUser(name)
	if err == nil {
		told("user", []any{user.Name, user.Tags}, err)
	}
	response, err = client.UpdatePermissionsIn(vhost, name, hole.Permissions{Configure: "^a", Write: "", Read: ".*"})
	told("permit", response, err)
	permission, err := client.GetPermissionsIn(vhost, name)
	told("permission", permission, err)
	permissions, err := client.ListPermissionsOf(name)
	told("permissions", permissions, err)
	response, err = client.UpdatePermissionsIn(vhost, name, hole.Permissions{Configure: "(", Write: "", Read: ""})
	told("permit a wrong pattern", response, err)
	topics := hole.TopicPermissions{Exchange: "amq.topic", Write: "^a", Read: "^b"}
	response, err = client.UpdateTopicPermissionsIn(vhost, name, topics)
	told("permit topics", response, err)
	shown, err := client.GetTopicPermissionsIn(vhost, name)
	told("topic permissions", shown, err)
	response, err = client.ClearTopicPermissionsIn(vhost, name)
	told("forbid topics", response, err)
	response, err = client.PutUserLimits(name, hole.UserLimitsValues{"max-channels": 7})
	told("limit user", response, err)
	limits, err := client.GetUserLimits(name)
	told("limits of user", limits, err)
	response, err = client.ClearPermissionsIn(vhost, name)
	told("forbid", response, err)
	_, err = client.GetPermissionsIn(vhost, name)
	told("missing permission", none{}, err)
	who, err := client.Whoami()
	told("whoami", who.Name, err)
}

func vhosts(client *hole.Client, name string) {
	settings := hole.VhostSettings{Description: "made by rabbit-hole", Tags: hole.VhostTags{"one", "two"}}
	response, err := client.PutVhost(name, settings)
	told("put vhost", response, err)
	vhost, err := client.GetVhost(name)
	if err == nil {
		told("vhost", []any{vhost.Name, vhost.Description, vhost.Tags, vhost.Tracing}, err)
	}
	response, err = client.PutVhostLimits(name, hole.VhostLimitsValues{"max-queues": 3})
	told("limit vhost", response, err)
	limits, err := client.GetVhostLimits(name)
	told("limits of vhost", limits, err)
	response, err = client.DeleteVhostLimits(name, hole.VhostLimits{"max-queues"})
	told("forget limits", response, err)
	connections, err := client.ListVhostConnections(name)
	told("connections", connections, err)
	_, err = client.GetVhost("nope")
	told("missing vhost", none{}, err)
}

func definitions(client *hole.Client, vhost string, name string) {
	exported, err := client.ListVhostDefinitions(vhost)
	if err != nil {
		told("export", none{}, err)
		return
	}
	told("export", []int{len(*exported.Queues), len(*exported.Exchanges)}, err)
	response, err := client.UploadVhostDefinitions(exported, name)
	told("import", response, err)
	listed, err := client.ListQueuesIn(name)
	told("imported queues", names(listed, func(each hole.QueueInfo) any { return []any{each.Name, each.Arguments} }), err)
	all, err := client.ListDefinitions()
	if err == nil {
		told("export all", []bool{all.Users != nil, all.Vhosts != nil, all.Permissions != nil, all.Queues != nil}, err)
	}
}

func checks(client *hole.Client) {
	alarms, err := client.HealthCheckAlarms()
	told("alarms", alarms, err)
	hosts, err := client.HealthCheckVirtualHosts()
	told("virtual hosts", hosts, err)
	quorum, err := client.HealthCheckNodeIsQuorumCritical()
	told("quorum", quorum, err)
	protocol, err := client.HealthCheckProtocolListener("amqp")
	told("protocol", protocol, err)
	_, err = client.HealthCheckPortListener(1)
	told("port", err != nil, nil)
	overview, err := client.Overview()
	if err == nil {
		told("overview", []any{overview.RabbitMQVersion, overview.ExchangeTypes != nil}, err)
	}
	nodes, err := client.ListNodes()
	told("nodes", len(nodes), err)
	protocols, err := client.EnabledProtocols()
	told("protocols", len(protocols) > 0, err)
	flags, err := client.ListFeatureFlags()
	told("feature flags", len(flags) > 0, err)
	response, err := client.RebalanceQueues()
	told("rebalance", response, err)
}

func end(client *hole.Client, vhost string, name string) {
	response, err := client.DeleteQueue(vhost, "hole s")
	told("delete stream", response, err)
	response, err = client.DeleteQueue(vhost, "hole q", hole.QueueDeleteOptions{IfEmpty: true})
	told("delete queue", response, err)
	response, err = client.DeleteQueue(vhost, "hole q")
	told("delete queue again", response, err)
	response, err = client.DeleteExchange(vhost, "hole/x")
	told("delete exchange", response, err)
	response, err = client.DeleteVhost(name)
	told("delete vhost", response, err)
	response, err = client.BulkDeleteUsers([]string{name})
	told("delete users", response, err)
	_, err = client.GetUser(name)
	told("missing user", err != nil, nil)
}

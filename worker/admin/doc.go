// Package admin lets people and programs look at a pool of workers: probes, metrics and
// a status page over HTTP, and a service on NATS.
//
// A [Server] is made and serves before there is anything to see, so that probes find
// it from the first moment on; [Server.Show] says what it shows. It reads the bucket
// only while somebody looks, and nothing that it does changes anything.
//
//	/         status page, live in a browser with JavaScript, a table without
//	/events   what keeps the page live: server-sent events
//	/metrics  Prometheus metrics, see [Metrics]
//	/livez    200 while the process is not stuck; asks nothing of NATS
//	/readyz   200 while every worker has a session and does its share
//
// # What is not guaranteed
//
// What is shown may be late and proves nothing. There is no TLS: on a network that you
// do not trust put a proxy before it. The probes answer everybody, since kubelets have
// no password; whoever may see nothing else learns one word from them.
//
// # Files
//
//	server.go   serving: time limits, headers, the end
//	guard.go    who may look
//	probe.go    /livez and /readyz
//	metrics.go  counters and histograms, fed by traces
//	gauges.go   what is read when somebody scrapes
//	board.go    what the page shows, as blocks that change one by one
//	live.go     one reading of the bucket for all who look
//	page.go     the page and its events
//	service.go  the service on NATS
package admin

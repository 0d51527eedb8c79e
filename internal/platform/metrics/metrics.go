// Package metrics holds the daemon's instruments, with the names of the U06 Service
// Discovery Protocol, section 7.
//
// Parts do not import Prometheus: they take a struct of this package for their plane, of which nil records nothing. All labels have a bounded set of values:
// an operation, an error kind, a refusal reason, or the type of an own service.
package metrics

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Discovery are the instruments of the discovery plane and of the node. Nil records nothing.
type Discovery struct {
	registered   prometheus.Counter
	unregistered prometheus.Counter
	refreshed    prometheus.Counter
	active       *prometheus.GaugeVec
	queries      prometheus.Counter
	outdated     prometheus.Counter
	duration     prometheus.Histogram
	results      prometheus.Histogram
	hits         prometheus.Counter
	misses       prometheus.Counter
	operations   *prometheus.CounterVec
	latency      *prometheus.HistogramVec
	checks       prometheus.Counter
	errors       *prometheus.CounterVec
	refused      *prometheus.CounterVec
	lacking      *prometheus.CounterVec
	gossip       *prometheus.CounterVec
	connections  *prometheus.CounterVec
	places       *prometheus.CounterVec
}

// NewDiscovery registers the instruments. Errors: Exists if the registry has them already.
func NewDiscovery(reg prometheus.Registerer) (*Discovery, error) {
	f := &factory{reg: reg, prefix: "blackhole_discovery_"}
	m := &Discovery{
		registered:   register(f, f.counter("services_registered_total", "Services registered on this peer.")),
		unregistered: register(f, f.counter("services_unregistered_total", "Services withdrawn from this peer.")),
		refreshed:    register(f, f.counter("services_refreshed_total", "Repeated announcements of this peer's services.")),
		active: register(f, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: f.prefix + "services_active", Help: "This peer's services, by type.",
		}, []string{"type"})),
		queries: register(f, f.counter("queries_total", "Answered discovery queries.")),
		duration: register(f, prometheus.NewHistogram(f.histogram("query_duration_seconds", "Time to answer a discovery query.",
			append([]float64{1e-6, 1e-5, 1e-4}, prometheus.ExponentialBuckets(0.001, 2, 12)...)))),
		results: register(f, prometheus.NewHistogram(f.histogram("results_returned", "Number of results of a discovery query.",
			prometheus.LinearBuckets(0, 10, 11)))),
		outdated: register(f, f.counter("outdated_answers_total",
			"Answers without records that need a newer version.")),
		hits:       register(f, f.counter("cache_hits_total", "Queries answered from the cache.")),
		misses:     register(f, f.counter("cache_misses_total", "Queries not answered from the cache.")),
		operations: register(f, f.counters("dht_operations_total", "Operations on the DHT and with keepers.", "operation")),
		latency: register(f, prometheus.NewHistogramVec(f.histogram("dht_latency_seconds", "Latency of operations on the DHT and with keepers.",
			prometheus.ExponentialBuckets(0.01, 2, 10)), []string{"operation"})),
		checks: register(f, f.counter("health_checks_total", "Measurements of providers.")),
		errors: register(f, f.counters("errors_total", "Errors, by type.", "error_type")),
		refused: register(f, fromZero(f.counters("refused_total", "Refused records, messages and answers, by reason.", "reason"),
			[]string{"busy", "malformed", "equivocation", "rate", "wrong_cell", "not_kept", "full", "untimely", "other_network"})),
		lacking: register(f, f.counters("keepers_lacking_total",
			"Refusals of keepers of an older version, by the field of the request that they do not know.", "field")),
		gossip: register(f, f.counters("gossip_messages_total", "Received live updates, by outcome.", "outcome")),
	}
	f.prefix = "blackhole_"
	m.connections = register(f, fromZero(f.counters("connections_refused_total",
		"Refused connections.", "reason"),
		[]string{"address", "rate", "full", "network"}))
	m.places = register(f, f.counters("places_refused_total",
		"Callers without a place, by pool and reason: full, or its share.", "resource", "reason"))
	return m, fault.As("metrics.NewDiscovery", fault.Exists, f.err)
}

// RegisterHealthGauges adds the gauges of usable and unusable services in the index. A service
// counts as unusable after a report of its provider, or after a failed measurement. Each scrape
// calls count.
func RegisterHealthGauges(reg prometheus.Registerer, count func() (healthy, unhealthy int)) error {
	f := &factory{reg: reg, prefix: "blackhole_discovery_"}
	type counts struct{ healthy, unhealthy int }
	gauges(f, func() (c counts) { c.healthy, c.unhealthy = count(); return c },
		gauge[counts]{"healthy_services", "Usable services in the index.", func(c counts) float64 { return float64(c.healthy) }},
		gauge[counts]{"unhealthy_services", "Unusable services in the index.", func(c counts) float64 { return float64(c.unhealthy) }},
	)
	return fault.As("metrics.RegisterHealthGauges", fault.Exists, f.err)
}

// Registered counts services added to this peer (delta > 0) or removed from it (delta < 0).
func (m *Discovery) Registered(kind string, delta int) {
	if m == nil {
		return
	}
	m.active.WithLabelValues(kind).Add(float64(delta))
	if delta > 0 {
		m.registered.Add(float64(delta))
	} else {
		m.unregistered.Add(float64(-delta))
	}
}

// Refreshed counts repeated announcements.
func (m *Discovery) Refreshed(n int) {
	if m != nil {
		m.refreshed.Add(float64(n))
	}
}

// Outdated counts an answer without records that need a newer version.
func (m *Discovery) Outdated() {
	if m != nil {
		m.outdated.Inc()
	}
}

// Queried counts an answered query. source is "cache", "local" or "network".
func (m *Discovery) Queried(source string, took time.Duration, results int) {
	if m == nil {
		return
	}
	m.queries.Inc()
	m.duration.Observe(took.Seconds())
	m.results.Observe(float64(results))
	if source == "cache" {
		m.hits.Inc()
	} else {
		m.misses.Inc()
	}
}

// Failed counts an error, by its kind and the component of its operation.
func (m *Discovery) Failed(op string, err error) {
	if m == nil {
		return
	}
	component, _, _ := strings.Cut(op, ".")
	m.errors.WithLabelValues(component + "_" + fault.KindOf(err).String()).Inc()
}

// Operation counts a finished operation on the network, with its latency and error: store, query, resolve, lookup, ask, deliver,
// sync, findings, forward, serve_store, serve_query, serve_sync,
// serve_pull, serve_resolve, serve_findings, serve_forward, serve_unknown.
func (m *Discovery) Operation(op string, took time.Duration, err error) {
	if m == nil {
		return
	}
	m.operations.WithLabelValues(op).Inc()
	m.latency.WithLabelValues(op).Observe(took.Seconds())
	if err != nil {
		m.Failed(op, err)
	}
}

// Refused counts a refused record or message of another peer. The reasons are a closed set: the names of fault kinds, and busy,
// malformed, equivocation, rate, wrong_cell, not_kept, full, untimely (expired or from the future by this peer's clock),
// other_network.
func (m *Discovery) Refused(reason string) {
	if m != nil {
		m.refused.WithLabelValues(reason).Inc()
	}
}

// Distrusted counts an answer that an honest peer cannot give.
func (m *Discovery) Distrusted(reason string) { m.Refused("answer_" + reason) }

// Lacking counts a refusal of a keeper of an older version, by the field that it does not know.
func (m *Discovery) Lacking(field string) {
	if m != nil {
		m.lacking.WithLabelValues(field).Inc()
	}
}

// Checked counts a measurement of a provider.
func (m *Discovery) Checked() {
	if m != nil {
		m.checks.Inc()
	}
}

// ConnectionRefused counts a refused connection: address, rate, full or network.
func (m *Discovery) ConnectionRefused(reason string) {
	if m != nil {
		m.connections.WithLabelValues(reason).Inc()
	}
}

// PlaceRefused counts a caller that got no place of a pool: full or share.
func (m *Discovery) PlaceRefused(resource, reason string) {
	if m != nil {
		m.places.WithLabelValues(resource, reason).Inc()
	}
}

// Received counts a live update, by its outcome.
func (m *Discovery) Received(outcome string) {
	if m != nil {
		m.gossip.WithLabelValues(outcome).Inc()
	}
}

// RegisterClockOffset adds the gauge of this peer's clock offset: NaN for an unknown one. Each scrape calls offset.
func RegisterClockOffset(reg prometheus.Registerer, offset func() *float64) error {
	f := &factory{reg: reg, prefix: "blackhole_"}
	register(f, f.gauge("clock_offset_seconds", "The clock of this peer minus the clocks of its keepers; NaN: unknown.", func() float64 {
		if s := offset(); s != nil {
			return *s
		}
		return math.NaN()
	}))
	return fault.As("metrics.RegisterClockOffset", fault.Exists, f.err)
}

// RegisterIndex adds the gauges of the memory of the index. Each scrape calls bytes.
func RegisterIndex(reg prometheus.Registerer, bytes func() (used, limit int64)) error {
	f := &factory{reg: reg, prefix: "blackhole_discovery_"}
	type memory struct{ used, limit int64 }
	gauges(f, func() (m memory) { m.used, m.limit = bytes(); return m },
		gauge[memory]{"index_bytes", "Estimated memory of the live records in the index.", func(m memory) float64 { return float64(m.used) }},
		gauge[memory]{"index_limit_bytes", "Limit of that memory.", func(m memory) float64 { return float64(m.limit) }},
	)
	return fault.As("metrics.RegisterIndex", fault.Exists, f.err)
}

// RegisterConditions adds the gauge of active conditions, with one series for each name: 1 while the condition
// lasts, otherwise 0. Each scrape calls active.
func RegisterConditions(reg prometheus.Registerer, names []string, active func() []string) error {
	f := &factory{reg: reg, prefix: "blackhole_"}
	f.scrape([]family{{"condition", "1 while the named condition limits this peer.", prometheus.GaugeValue, []string{"name"}}}, func(set setter) {
		on := active()
		for _, n := range names {
			set("condition", flag(slices.Contains(on, n)), n)
		}
	})
	return fault.As("metrics.RegisterConditions", fault.Exists, f.err)
}

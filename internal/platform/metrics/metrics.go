// Package metrics are the daemon's instruments, in the names of the U06 Service Discovery
// Protocol, section 7.
//
// Components do not know Prometheus: each declares a small recorder interface of plain
// values, and *Metrics satisfies them all. Labels are bounded: an operation, an error
// kind, a refusal reason, or the type of an own service.
package metrics

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Metrics are the instruments of one peer.
type Metrics struct {
	registered   prometheus.Counter
	unregistered prometheus.Counter
	refreshed    prometheus.Counter
	active       *prometheus.GaugeVec
	queries      prometheus.Counter
	duration     prometheus.Histogram
	results      prometheus.Histogram
	hits         prometheus.Counter
	misses       prometheus.Counter
	operations   *prometheus.CounterVec
	latency      *prometheus.HistogramVec
	checks       prometheus.Counter
	errors       *prometheus.CounterVec
	refused      *prometheus.CounterVec
	gossip       *prometheus.CounterVec
}

// New registers the instruments with a registry of the caller's. It fails with Exists when
// the registry has them already.
func New(reg prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "blackhole_discovery_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "blackhole_discovery_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: "blackhole_discovery_" + name, Help: help, Buckets: buckets}
	}
	m := &Metrics{
		registered:   counter("services_registered_total", "Services registered on this peer."),
		unregistered: counter("services_unregistered_total", "Services withdrawn from this peer."),
		refreshed:    counter("services_refreshed_total", "Announcements repeated for this peer's services."),
		active: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "blackhole_discovery_services_active", Help: "This peer's services by type.",
		}, []string{"type"}),
		queries: counter("queries_total", "Discovery queries answered."),
		duration: prometheus.NewHistogram(histogram("query_duration_seconds", "Time to answer a discovery query.",
			append([]float64{1e-6, 1e-5, 1e-4}, prometheus.ExponentialBuckets(0.001, 2, 12)...))),
		results: prometheus.NewHistogram(histogram("results_returned", "Results of a discovery query.",
			prometheus.LinearBuckets(0, 10, 11))),
		hits:       counter("cache_hits_total", "Queries answered from the cache."),
		misses:     counter("cache_misses_total", "Queries that the cache could not answer."),
		operations: counters("dht_operations_total", "Operations on the DHT and with keepers.", "operation"),
		latency: prometheus.NewHistogramVec(histogram("dht_latency_seconds", "Latency of operations on the DHT and with keepers.",
			prometheus.ExponentialBuckets(0.01, 2, 10)), []string{"operation"}),
		checks:  counter("health_checks_total", "Measurements of providers."),
		errors:  counters("errors_total", "Errors by type.", "error_type"),
		refused: counters("refused_total", "Records, messages and answers refused, by reason.", "reason"),
		gossip:  counters("gossip_messages_total", "Live updates by outcome.", "outcome"),
	}
	return m, m.register(reg)
}

func (m *Metrics) register(reg prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{
		m.registered, m.unregistered, m.refreshed, m.active, m.queries, m.duration, m.results, m.hits, m.misses,
		m.operations, m.latency, m.checks, m.errors, m.refused, m.gossip,
	} {
		if err := reg.Register(c); err != nil {
			return fault.As("metrics.New", fault.Exists, err)
		}
	}
	return nil
}

// RegisterHealthGauges adds the gauges of known services, counted at each scrape: those whose provider
// neither claims to be unhealthy nor was found unreachable, and the others.
func (m *Metrics) RegisterHealthGauges(reg prometheus.Registerer, count func() (healthy, unhealthy int)) error {
	return fault.As("metrics.Census", fault.Exists, reg.Register(healthGauges{
		count:     count,
		healthy:   prometheus.NewDesc("blackhole_discovery_healthy_services", "Known services that are usable.", nil, nil),
		unhealthy: prometheus.NewDesc("blackhole_discovery_unhealthy_services", "Known services that are not usable.", nil, nil),
	}))
}

// healthGauges collects two gauges from one count.
type healthGauges struct {
	count              func() (healthy, unhealthy int)
	healthy, unhealthy *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c healthGauges) Describe(out chan<- *prometheus.Desc) { out <- c.healthy; out <- c.unhealthy }

// Collect implements prometheus.Collector.
func (c healthGauges) Collect(out chan<- prometheus.Metric) {
	healthy, unhealthy := c.count()
	out <- prometheus.MustNewConstMetric(c.healthy, prometheus.GaugeValue, float64(healthy))
	out <- prometheus.MustNewConstMetric(c.unhealthy, prometheus.GaugeValue, float64(unhealthy))
}

// Registered counts a service that was added to (+1) or ended on (-1) this peer.
func (m *Metrics) Registered(kind string, delta int) {
	m.active.WithLabelValues(kind).Add(float64(delta))
	if delta > 0 {
		m.registered.Add(float64(delta))
	} else {
		m.unregistered.Add(float64(-delta))
	}
}

// Refreshed counts repeated announcements.
func (m *Metrics) Refreshed(n int) { m.refreshed.Add(float64(n)) }

// Queried counts one answered query; source is "cache", "local" or "network".
func (m *Metrics) Queried(source string, took time.Duration, results int) {
	m.queries.Inc()
	m.duration.Observe(took.Seconds())
	m.results.Observe(float64(results))
	if source == "cache" {
		m.hits.Inc()
	} else {
		m.misses.Inc()
	}
}

// Failed counts an error by its kind and the component of its operation.
func (m *Metrics) Failed(op string, err error) {
	component, _, _ := strings.Cut(op, ".")
	m.errors.WithLabelValues(component + "_" + fault.KindOf(err).String()).Inc()
}

// Operation counts one operation with the network and its latency.
func (m *Metrics) Operation(op string, took time.Duration, err error) {
	m.operations.WithLabelValues(op).Inc()
	m.latency.WithLabelValues(op).Observe(took.Seconds())
	if err != nil {
		m.Failed(op, err)
	}
}

// Refused counts something of another peer's that was not accepted.
func (m *Metrics) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }

// Distrusted counts an answer that no honest peer gives.
func (m *Metrics) Distrusted(reason string) { m.refused.WithLabelValues("answer_" + reason).Inc() }

// Checked counts one measurement of a provider.
func (m *Metrics) Checked() { m.checks.Inc() }

// Received counts one live update by its outcome.
func (m *Metrics) Received(outcome string) { m.gossip.WithLabelValues(outcome).Inc() }

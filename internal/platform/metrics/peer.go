package metrics

import (
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Build describes this program.
type Build struct{ Version, Revision string }

// RegisterBuild adds the gauge that is always 1 and whose labels describe this program.
func RegisterBuild(reg prometheus.Registerer, b Build) error {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "blackhole_build_info", Help: "Always 1; the labels describe this program.",
		ConstLabels: prometheus.Labels{
			"version": b.Version, "revision": b.Revision, "goversion": runtime.Version(), "goos": runtime.GOOS, "goarch": runtime.GOARCH,
		},
	})
	g.Set(1)
	return fault.As("metrics.RegisterBuild", fault.Exists, reg.Register(g))
}

// Calls are the instruments of the gRPC front end.
type Calls struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
	streams  *prometheus.GaugeVec
}

// NewCalls registers the instruments. Errors: Exists if the registry has them already.
func NewCalls(reg prometheus.Registerer) (*Calls, error) {
	f := &factory{reg: reg, prefix: "blackhole_grpc_"}
	c := &Calls{
		calls: register(f, f.counters("calls_total", "Ended gRPC calls of applications, by method and outcome: ok, or the kind of error.", "method", "outcome")),
		duration: register(f, prometheus.NewHistogramVec(f.histogram("call_duration_seconds", "Latency of gRPC calls without streams.",
			prometheus.ExponentialBuckets(0.0001, 4, 9)), []string{"method"})),
		streams: register(f, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: f.prefix + "streams", Help: "Open streams of gRPC, by method."}, []string{"method"})),
	}
	return c, fault.As("metrics.NewCalls", fault.Exists, f.err)
}

// Called counts an ended call. method is the full name of a method that the server has, so that the number of labels is
// bounded.
func (c *Calls) Called(method string, took time.Duration, err error) {
	c.ended(method, err)
	c.duration.WithLabelValues(short(method)).Observe(took.Seconds())
}

// Streamed counts an open stream. The caller calls ended at its end.
func (c *Calls) Streamed(method string) (ended func(error)) {
	open := c.streams.WithLabelValues(short(method))
	open.Inc()
	return func(err error) {
		open.Dec()
		c.ended(method, err)
	}
}

func (c *Calls) ended(method string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = fault.KindOf(err).String()
	}
	c.calls.WithLabelValues(short(method), outcome).Inc()
}

// short is Service/Method without the package: "/blackhole.api.v1.LockService/Lock" is "LockService/Lock".
func short(method string) string {
	if dot := strings.LastIndexByte(method, '.'); dot >= 0 {
		return method[dot+1:]
	}
	return strings.TrimPrefix(method, "/")
}

// DNS counts the work of the name server since its start.
type DNS struct {
	Queries, TCP, Truncated, Limited, Dropped, Refused uint64
	Answers                                            map[int]uint64 // by response code
}

// RegisterDNS adds the counters of the name server. Each scrape calls now. name translates response codes.
func RegisterDNS(reg prometheus.Registerer, now func() DNS, name func(rcode int) string) error {
	const p = "blackhole_dns_"
	desc := func(n, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(p+n, help, labels, nil)
	}
	return fault.As("metrics.RegisterDNS", fault.Exists, reg.Register(&dnsCounters{
		now: now, name: name,
		queries:   desc("queries_total", "Queries received, by transport.", "transport"),
		answers:   desc("answers_total", "Answers, by response code.", "rcode"),
		truncated: desc("truncated_total", "Answers without room for all records."),
		dropped:   desc("dropped_total", "Unanswered packets: of a client above its rate (limited), or without a question (malformed).", "reason"),
		refused:   desc("connections_refused_total", "TCP connections above the bounds, or of clients outside the private networks."),
	}))
}

type dnsCounters struct {
	now                                           func() DNS
	name                                          func(int) string
	queries, answers, truncated, dropped, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (d *dnsCounters) Describe(out chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.queries, d.answers, d.truncated, d.dropped, d.refused} {
		out <- one
	}
}

// Collect implements prometheus.Collector.
func (d *dnsCounters) Collect(out chan<- prometheus.Metric) {
	s := d.now()
	count := func(desc *prometheus.Desc, n uint64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	count(d.queries, s.Queries-s.TCP, "udp")
	count(d.queries, s.TCP, "tcp")
	for rcode, n := range s.Answers {
		text := d.name(rcode)
		if text == "" {
			text = strconv.Itoa(rcode)
		}
		count(d.answers, n, text)
	}
	count(d.truncated, s.Truncated)
	count(d.dropped, s.Limited, "limited")
	count(d.dropped, s.Dropped, "malformed")
	count(d.refused, s.Refused)
}

// Catalog describes the copy of the directory on this peer.
type Catalog struct {
	Services, Instances, Watches int
	StaleSeconds                 float64 // since the loss of the contact with the group; 0 with contact
}

// RegisterCatalog adds the gauges of the catalog. Each scrape calls now.
func RegisterCatalog(reg prometheus.Registerer, now func() Catalog) error {
	f := &factory{reg: reg, prefix: "blackhole_catalog_"}
	for _, g := range []struct {
		name, help string
		value      func(Catalog) float64
	}{
		{"services", "Services with instances, of all peers.", func(c Catalog) float64 { return float64(c.Services) }},
		{"instances", "Instances of all peers.", func(c Catalog) float64 { return float64(c.Instances) }},
		{"watches", "Open watches of instances at this peer.", func(c Catalog) float64 { return float64(c.Watches) }},
		{"stale_seconds", "Time without contact to the group, in which answers are marked as stale; 0 with contact.",
			func(c Catalog) float64 { return c.StaleSeconds }},
	} {
		register(f, f.gauge(g.name, g.help, func() float64 { return g.value(now()) }))
	}
	return fault.As("metrics.RegisterCatalog", fault.Exists, f.err)
}

// RegisterStores adds the gauge of bytes on disk. Each scrape calls size for each store.
func RegisterStores(reg prometheus.Registerer, stores []string, size func(store string) (bytes int64)) error {
	return fault.As("metrics.RegisterStores", fault.Exists, reg.Register(storeSizes{
		stores: stores, size: size,
		desc: prometheus.NewDesc("blackhole_store_bytes", "Bytes of a part of the data directory.", []string{"store"}, nil),
	}))
}

type storeSizes struct {
	stores []string
	size   func(string) int64
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s storeSizes) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

// Collect implements prometheus.Collector.
func (s storeSizes) Collect(out chan<- prometheus.Metric) {
	for _, name := range s.stores {
		out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(s.size(name)), name)
	}
}

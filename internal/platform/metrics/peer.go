package metrics

import (
	"cmp"
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

// RegisterLog adds the counter of lines that the output of the log did not take. Each scrape calls lost.
func RegisterLog(reg prometheus.Registerer, lost func() int64) error {
	f := &factory{reg: reg, prefix: "blackhole_log_"}
	f.scrape([]family{{"lost_lines_total", "Log lines that were not written.", prometheus.CounterValue, nil}}, func(set setter) {
		set("lost_lines_total", float64(lost()))
	})
	return fault.As("metrics.RegisterLog", fault.Exists, f.err)
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
	f := &factory{reg: reg, prefix: "blackhole_dns_"}
	counter := func(name, help string, labels ...string) family {
		return family{name, help, prometheus.CounterValue, labels}
	}
	f.scrape([]family{
		counter("queries_total", "Queries received, by transport.", "transport"),
		counter("answers_total", "Answers, by response code.", "rcode"),
		counter("truncated_total", "Answers without room for all records."),
		counter("dropped_total", "Unanswered packets: limited by the rate of a client, or malformed.", "reason"),
		counter("connections_refused_total", "Refused TCP connections."),
	}, func(set setter) {
		s := now()
		set("queries_total", float64(s.Queries-s.TCP), "udp")
		set("queries_total", float64(s.TCP), "tcp")
		for rcode, n := range s.Answers {
			set("answers_total", float64(n), cmp.Or(name(rcode), strconv.Itoa(rcode)))
		}
		set("truncated_total", float64(s.Truncated))
		set("dropped_total", float64(s.Limited), "limited")
		set("dropped_total", float64(s.Dropped), "malformed")
		set("connections_refused_total", float64(s.Refused))
	})
	return fault.As("metrics.RegisterDNS", fault.Exists, f.err)
}

// Catalog describes the copy of the directory on this peer.
type Catalog struct {
	Services, Instances, Watches int
	StaleSeconds                 float64 // since the loss of the contact with the group; 0 with contact
	Pending                      int     // instances of this peer that the group does not have in their last state
}

// RegisterCatalog adds the gauges of the catalog. Each scrape calls now.
func RegisterCatalog(reg prometheus.Registerer, now func() Catalog) error {
	f := &factory{reg: reg, prefix: "blackhole_catalog_"}
	gauges(f, now,
		gauge[Catalog]{"services", "Services with instances, of all peers.", func(c Catalog) float64 { return float64(c.Services) }},
		gauge[Catalog]{"instances", "Instances of all peers.", func(c Catalog) float64 { return float64(c.Instances) }},
		gauge[Catalog]{"watches", "Open watches of instances at this peer.", func(c Catalog) float64 { return float64(c.Watches) }},
		gauge[Catalog]{"instances_uncommitted", "Instances of this peer that the group lacks in their last state.", func(c Catalog) float64 { return float64(c.Pending) }},
		gauge[Catalog]{"stale_seconds", "Time without contact to the group; 0 with contact.", func(c Catalog) float64 { return c.StaleSeconds }},
	)
	return fault.As("metrics.RegisterCatalog", fault.Exists, f.err)
}

// RegisterStores adds the gauge of bytes on disk. Each scrape calls size for each store.
func RegisterStores(reg prometheus.Registerer, stores []string, size func(store string) (bytes int64)) error {
	f := &factory{reg: reg, prefix: "blackhole_"}
	f.scrape([]family{{"store_bytes", "Bytes of a part of the data directory.", prometheus.GaugeValue, []string{"store"}}}, func(set setter) {
		for _, name := range stores {
			set("store_bytes", float64(size(name)), name)
		}
	})
	return fault.As("metrics.RegisterStores", fault.Exists, f.err)
}

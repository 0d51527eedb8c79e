package metrics

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Agent are the instruments of the agent plane and of the HTTP front end, in the names of the
// SAP-044 Registry.
type Agent struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	operations *prometheus.CounterVec
	beats      window

	counted sync.Map // request to prometheus.Counter, so that labels are looked up once
	timed   sync.Map // request, without status, to prometheus.Observer
}

// request are the labels of one; all of them are bounded by who calls.
type request struct {
	endpoint, method string
	status           int
}

// NewAgent registers the instruments, and a gauge of the services by status ("up", "unhealthy",
// "down", "unknown") that are counted at each scrape; those that are missing count 0. It fails with
// Exists when the registry has them already.
func NewAgent(reg prometheus.Registerer, census func() map[string]int, now func() time.Time) (*Agent, error) {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "manifest_" + name, Help: help}, labels)
	}
	a := &Agent{
		requests: counters("http_requests_total", "HTTP requests by endpoint, method and status.", "endpoint", "method", "status"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "manifest_http_request_duration_seconds", Help: "Latency of HTTP requests, but those that wait for changes.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5},
		}, []string{"endpoint", "method"}),
		operations: counters("storage_operations_total", "Operations on the storage of instances.", "operation", "status"),
		beats:      window{now: now},
	}
	rate := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "manifest_heartbeat_success_rate", Help: "Share of the heartbeats of the last minute that renewed a lease; 1 when there were none.",
	}, a.beats.rate)
	services := statusGauges{census, prometheus.NewDesc("manifest_services_total", "Registered services by status.", []string{"status"}, nil)}
	for _, c := range []prometheus.Collector{a.requests, a.duration, a.operations, rate, services} {
		if err := reg.Register(c); err != nil {
			return nil, fault.As("metrics.NewAgent", fault.Exists, err)
		}
	}
	return a, nil
}

// Requested counts an answered request.
func (a *Agent) Requested(endpoint, method string, status int) {
	key := request{endpoint, method, status}
	c, ok := a.counted.Load(key)
	if !ok {
		c, _ = a.counted.LoadOrStore(key, a.requests.WithLabelValues(endpoint, method, strconv.Itoa(status)))
	}
	c.(prometheus.Counter).Inc()
}

// Took measures an answered request.
func (a *Agent) Took(endpoint, method string, d time.Duration) {
	key := request{endpoint, method, 0}
	o, ok := a.timed.Load(key)
	if !ok {
		o, _ = a.timed.LoadOrStore(key, a.duration.WithLabelValues(endpoint, method))
	}
	o.(prometheus.Observer).Observe(d.Seconds())
}

// Stored counts an operation on the storage: "get", "put" or "delete".
func (a *Agent) Stored(operation string, err error) {
	outcome := "success"
	if err != nil {
		outcome = "error"
	}
	a.operations.WithLabelValues(operation, outcome).Inc()
}

// Beaten counts heartbeats that renewed a lease, and those that did not.
func (a *Agent) Beaten(renewed, refused int) { a.beats.add(renewed, refused) }

// statusGauges collects a gauge for each status.
type statusGauges struct {
	census func() map[string]int
	desc   *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (s statusGauges) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

// Collect implements prometheus.Collector.
func (s statusGauges) Collect(out chan<- prometheus.Metric) {
	counts := s.census()
	for _, status := range []string{"up", "unhealthy", "down", "unknown"} {
		out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(counts[status]), status)
	}
}

// Slots of a window: a minute in parts, and the part that runs.
const (
	slotLength = 5 * time.Second
	slotCount  = 13
)

// window counts two things over the last minute, to slotLength. It is safe for concurrent use and
// adding waits for nobody. A count that comes while its slot is emptied may be lost.
type window struct {
	now   func() time.Time
	slots [slotCount]slot
}

// slot are the counts of one part; of says which one since the epoch.
type slot struct{ of, good, bad atomic.Int64 }

func (w *window) add(good, bad int) {
	part := w.part()
	s := &w.slots[part%slotCount]
	if of := s.of.Load(); of != part && s.of.CompareAndSwap(of, part) {
		s.good.Store(0)
		s.bad.Store(0)
	}
	s.good.Add(int64(good))
	s.bad.Add(int64(bad))
}

func (w *window) part() int64 { return w.now().UnixNano() / int64(slotLength) }

// rate is the share of the good ones.
func (w *window) rate() float64 {
	var good, bad int64
	part := w.part()
	for n := range w.slots {
		if s := &w.slots[n]; part-s.of.Load() < slotCount {
			good += s.good.Load()
			bad += s.bad.Load()
		}
	}
	if good+bad == 0 {
		return 1
	}
	return float64(good) / float64(good+bad)
}

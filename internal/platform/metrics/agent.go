package metrics

import (
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Agent are the instruments of the agent plane and of the HTTP front end, with the names of
// the SAP-044 Registry. Nil records nothing of the plane.
type Agent struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	operations *prometheus.CounterVec
	heartbeats window
	discovery  *Discovery

	counters  sync.Map // request to prometheus.Counter, to look up labels once
	observers sync.Map // request without status to prometheus.Observer
}

// request are the labels of a request. The caller bounds the number of values.
type request struct {
	endpoint, method string
	status           int
}

// NewAgent registers the instruments, and a gauge of instances by status ("up", "unhealthy",
// "down", "unknown") that calls count at each scrape. A missing status counts as 0. Errors
// count at discovery, of which all planes share one counter. Errors: Exists if the
// registry has the instruments already.
func NewAgent(reg prometheus.Registerer, discovery *Discovery, count func() map[string]int, now func() time.Time) (*Agent, error) {
	f := &factory{reg: reg, prefix: "manifest_"}
	a := &Agent{
		requests: register(f, f.counters("http_requests_total", "HTTP requests, by endpoint, method and status.", "endpoint", "method", "status")),
		duration: register(f, prometheus.NewHistogramVec(
			f.histogram("http_request_duration_seconds", "Latency of HTTP requests, without requests that wait for changes.",
				[]float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5}), []string{"endpoint", "method"})),
		operations: register(f, f.counters("storage_operations_total", "Operations on the storage of instances.", "operation", "status")),
		heartbeats: window{now: now}, discovery: discovery,
	}
	register(f, f.gauge("heartbeat_success_rate", "Share of the heartbeats of the last minute that renewed a lease; 1 without heartbeats.", a.heartbeats.rate))
	f.scrape([]family{{"services_total", "Registered instances, by status.", prometheus.GaugeValue, []string{"status"}}}, func(set setter) {
		counts := count()
		for _, status := range []string{"up", "unhealthy", "down", "unknown"} {
			set("services_total", float64(counts[status]), status)
		}
	})
	return a, fault.As("metrics.NewAgent", fault.Exists, f.err)
}

// Requested counts an answered request.
func (a *Agent) Requested(endpoint, method string, status int) {
	key := request{endpoint, method, status}
	c, ok := a.counters.Load(key)
	if !ok {
		c, _ = a.counters.LoadOrStore(key, a.requests.WithLabelValues(endpoint, method, strconv.Itoa(status)))
	}
	c.(prometheus.Counter).Inc()
}

// Took records the duration of an answered request.
func (a *Agent) Took(endpoint, method string, d time.Duration) {
	key := request{endpoint, method, 0}
	o, ok := a.observers.Load(key)
	if !ok {
		o, _ = a.observers.LoadOrStore(key, a.duration.WithLabelValues(endpoint, method))
	}
	o.(prometheus.Observer).Observe(d.Seconds())
}

// Stored counts an operation on the storage of instances: "get", "put" or "delete".
func (a *Agent) Stored(operation string, err error) {
	if a == nil {
		return
	}
	outcome := "success"
	if err != nil {
		outcome = "error"
	}
	a.operations.WithLabelValues(operation, outcome).Inc()
}

// Beaten counts heartbeats that renewed a lease, and refused heartbeats, without those of unknown instances.
func (a *Agent) Beaten(renewed, refused int) {
	if a != nil {
		a.heartbeats.add(renewed, refused)
	}
}

// Failed counts an error by operation.
func (a *Agent) Failed(op string, err error) {
	if a != nil {
		a.discovery.Failed(op, err)
	}
}

// A window has slots for one minute, and one slot for the current time.
const (
	slotLength = 5 * time.Second
	slotCount  = 13
)

// window counts successes and failures over the last minute, with the precision of slotLength.
// It works without locks and is safe for concurrent use. The reset of a slot may lose a concurrent count.
type window struct {
	now   func() time.Time
	slots [slotCount]slot
}

// slot has the counts of one interval of slotLength. The field of numbers intervals since the
// epoch.
type slot struct{ of, good, bad atomic.Int64 }

func (w *window) add(good, bad int) {
	interval := w.interval()
	s := &w.slots[interval%slotCount]
	if of := s.of.Load(); of != interval && s.of.CompareAndSwap(of, interval) {
		s.good.Store(0)
		s.bad.Store(0)
	}
	s.good.Add(int64(good))
	s.bad.Add(int64(bad))
}

func (w *window) interval() int64 { return w.now().UnixNano() / int64(slotLength) }

// rate returns the share of successes; 1 without counts.
func (w *window) rate() float64 {
	var good, bad int64
	interval := w.interval()
	for n := range w.slots {
		if s := &w.slots[n]; interval-s.of.Load() < slotCount {
			good += s.good.Load()
			bad += s.bad.Load()
		}
	}
	if good+bad == 0 {
		return 1
	}
	return float64(good) / float64(good+bad)
}

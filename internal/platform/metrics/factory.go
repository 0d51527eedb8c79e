package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// factory creates instruments whose names share a prefix.
type factory struct {
	reg    prometheus.Registerer
	prefix string
	err    error // the first failed registration
}

// register registers an instrument and returns it.
func register[C prometheus.Collector](f *factory, c C) C {
	if f.err == nil {
		f.err = f.reg.Register(c)
	}
	return c
}

func (f *factory) counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: f.prefix + name, Help: help})
}

func (f *factory) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.prefix + name, Help: help}, labels)
}

// fromZero shows the counters of all combinations of known values at 0, because a rate misses the first event of a counter that appears
// with it. It returns v.
func fromZero(v *prometheus.CounterVec, values ...[]string) *prometheus.CounterVec {
	rows := [][]string{nil}
	for _, list := range values {
		var longer [][]string
		for _, row := range rows {
			for _, value := range list {
				longer = append(longer, append(slices.Clone(row), value))
			}
		}
		rows = longer
	}
	for _, row := range rows {
		v.WithLabelValues(row...)
	}
	return v
}

func (f *factory) gauge(name, help string, value func() float64) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: f.prefix + name, Help: help}, value)
}

func (f *factory) histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: f.prefix + name, Help: help, Buckets: buckets}
}

// family describes a metric whose values are read at each scrape.
type family struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
}

// gauge is a family without labels, and its value in what a scrape reads.
type gauge[S any] struct {
	name, help string
	of         func(S) float64
}

// gauges registers gauges. Each scrape calls read once.
func gauges[S any](f *factory, read func() S, all ...gauge[S]) {
	var families []family
	for _, g := range all {
		families = append(families, family{name: g.name, help: g.help, kind: prometheus.GaugeValue})
	}
	f.scrape(families, func(set setter) {
		now := read()
		for _, g := range all {
			set(g.name, g.of(now))
		}
	})
}

// setter states the value of a metric during a scrape. The labels are in the order of the family.
type setter func(name string, value float64, labels ...string)

// scrape registers families. Each scrape calls read once, which states the values.
func (f *factory) scrape(families []family, read func(set setter)) {
	s := scraped{read: read}
	for _, one := range families {
		s.families = append(s.families, described{one, prometheus.NewDesc(f.prefix+one.name, one.help, one.labels, nil)})
	}
	register(f, s)
}

type described struct {
	family
	desc *prometheus.Desc
}

type scraped struct {
	families []described
	read     func(setter)
}

// Describe implements prometheus.Collector.
func (s scraped) Describe(out chan<- *prometheus.Desc) {
	for _, f := range s.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (s scraped) Collect(out chan<- prometheus.Metric) {
	s.read(func(name string, value float64, labels ...string) {
		i := slices.IndexFunc(s.families, func(f described) bool { return f.name == name })
		out <- prometheus.MustNewConstMetric(s.families[i].desc, s.families[i].kind, value, labels...)
	})
}

// flag is 1 for true.
func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

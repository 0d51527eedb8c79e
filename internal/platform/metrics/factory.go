package metrics

import "github.com/prometheus/client_golang/prometheus"

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

func (f *factory) gauge(name, help string, value func() float64) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: f.prefix + name, Help: help}, value)
}

func (f *factory) histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: f.prefix + name, Help: help, Buckets: buckets}
}

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// operatorCalls is what the operator may do with a running peer.
type operatorCalls struct{ *parts }

// Debug implements grpcapi.Operator. Secrets stay out, because a secret.Value never prints them and nothing logs them.
func (p operatorCalls) Debug(_ context.Context, send func(name string, content []byte) error) error {
	for _, file := range []struct {
		name  string
		write func(*bytes.Buffer) error
	}{
		{"build.txt", p.writeBuild}, {"settings.txt", p.writeSettings}, {"metrics.txt", p.writeMetrics},
		{"goroutines.txt", func(b *bytes.Buffer) error { return pprof.Lookup("goroutine").WriteTo(b, 1) }},
		{"heap.pb.gz", func(b *bytes.Buffer) error { return pprof.Lookup("heap").WriteTo(b, 0) }},
		{"log.txt", func(b *bytes.Buffer) error { _, err := b.Write(p.journal.lines()); return err }},
	} {
		var b bytes.Buffer
		if err := file.write(&b); err != nil {
			return fault.As("daemon.Debug", fault.Internal, err)
		}
		if err := send(file.name, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// SetLogLevel implements grpcapi.Operator.
func (p operatorCalls) SetLogLevel(level string) (previous string, err error) {
	previous, err = p.journal.setLevel(level)
	if level = strings.ToLower(level); err == nil && previous != level {
		p.log.Warn("the level of the log has changed, until the peer stops", "from", previous, "to", level)
	}
	return previous, err
}

// LastChecks implements grpcapi.Operator.
func (p operatorCalls) LastChecks(k instance.Key) ([]instances.LastCheck, error) {
	if p.agent == nil {
		return nil, fault.New("daemon.LastChecks", fault.Unsupported, "this peer has no agent plane: see its setting agent.enabled")
	}
	return p.agent.LastChecks(k), nil
}

func (p operatorCalls) writeBuild(b *bytes.Buffer) error {
	fmt.Fprintf(b, "version %s\n", p.version)
	if info, ok := debug.ReadBuildInfo(); ok {
		b.WriteString(info.String())
	}
	return nil
}

func (p operatorCalls) writeSettings(b *bytes.Buffer) error {
	now := p.fronts.reloader.settings()
	for _, key := range config.Keys() {
		fmt.Fprintf(b, "%s: %s\n", key, now.Value(key))
	}
	return nil
}

func (p operatorCalls) writeMetrics(b *bytes.Buffer) error {
	promhttp.HandlerFor(p.gatherer, promhttp.HandlerOpts{}).ServeHTTP(page{b, http.Header{}}, &http.Request{})
	return nil
}

// page keeps the body of an answer of HTTP.
type page struct {
	*bytes.Buffer
	header http.Header
}

// Header implements http.ResponseWriter.
func (p page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (page) WriteHeader(int) {}

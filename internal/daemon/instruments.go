package daemon

import (
	"context"
	"io/fs"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/frontend/dnsapi"
	"github.com/blackhole/blackhole/internal/platform/metrics"
)

// valuesFile holds the DHT's values in a data directory.
const valuesFile = "dht.values"

// measure adds the metrics of the program, its log and its data directory.
func measure(reg prometheus.Registerer, version, dataDir string, lostLines func() int64) error {
	if err := metrics.RegisterBuild(reg, metrics.Build{Version: version, Revision: revision()}); err != nil {
		return err
	}
	if err := metrics.RegisterLog(reg, lostLines); err != nil {
		return err
	}
	return metrics.RegisterStores(reg, []string{registryDir, instancesDir, coordinationDir, valuesFile}, func(store string) int64 {
		return bytesIn(filepath.Join(dataDir, store))
	})
}

// revision is the commit of this program, or "".
func revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}

// bytesIn sums the files of a folder, or returns the size of a file. Files that vanish meanwhile, and a missing folder, count nothing.
func bytesIn(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// countCalls counts the calls of a gRPC front end, those that fail authentication included.
func countCalls(calls *metrics.Calls, unaries *[]grpc.UnaryServerInterceptor, streams *[]grpc.StreamServerInterceptor) {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := call(ctx, req)
		calls.Called(info.FullMethod, time.Since(start), err)
		return resp, err
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, call grpc.StreamHandler) error {
		ended := calls.Streamed(info.FullMethod)
		err := call(srv, ss)
		ended(err)
		return err
	}
	*unaries = append([]grpc.UnaryServerInterceptor{unary}, *unaries...)
	*streams = append([]grpc.StreamServerInterceptor{stream}, *streams...)
}

// countNames adds the metrics of the name server.
func countNames(reg prometheus.Registerer, server *dnsapi.Server) error {
	return metrics.RegisterDNS(reg, func() metrics.DNS { return metrics.DNS(server.Stats()) }, func(rcode int) string { return dns.RcodeToString[rcode] })
}

// countInstances adds the metrics of the copy of the directory.
func countInstances(reg prometheus.Registerer, stats func() catalog.Stats, pending func() int) error {
	return metrics.RegisterCatalog(reg, func() metrics.Catalog {
		s := stats()
		return metrics.Catalog{Services: s.Services, Instances: s.Instances, Watches: s.Watches, StaleSeconds: s.StaleFor.Seconds(), Pending: pending()}
	})
}

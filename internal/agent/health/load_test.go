//go:build unix

package health_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	grpchealth "google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/pkg/instance"
)

// servers is the variable that turns the test binary into servers for the load
// test, by check type: a separate process, so that only the CPU time of checks
// counts.
const servers = "BLACKHOLE_HEALTH_SERVERS"

// hosts is the number of served loopback addresses; each allows 28,000
// connections a minute.
const hosts = 50

func TestMain(m *testing.M) {
	if kind := os.Getenv(servers); kind != "" {
		serve(instance.CheckType(kind))
		return
	}
	goleak.VerifyTestMain(m)
}

// serve writes its addresses and serves until its input ends.
func serve(kind instance.CheckType) {
	for i := range hosts {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.1.%d:0", i+1))
		if err != nil {
			fmt.Println(err)
			return
		}
		switch kind {
		case instance.HTTP:
			go func() { _ = http.Serve(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) }()
		case instance.GRPC:
			s := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(s, grpchealth.NewServer())
			go func() { _ = s.Serve(l) }()
		default:
			go accept(l)
		}
		fmt.Println(l.Addr())
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
}

func accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}

// started returns the addresses of servers in separate processes.
func started(b *testing.B, kind instance.CheckType) []string {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), servers+"="+string(kind))
	_, err := cmd.StdinPipe()
	require.NoError(b, err)
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	b.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	var addrs []string
	for lines := bufio.NewScanner(out); len(addrs) < hosts && lines.Scan(); {
		addrs = append(addrs, strings.TrimSpace(lines.Text()))
	}
	require.Len(b, addrs, hosts)
	return addrs
}

func cpu() time.Duration {
	var use syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &use)
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkLoad checks 10,000 targets every 10 s over loopback: CPU seconds a second of this process
// alone, and bytes a target with goroutines' stacks, after as many rounds as b.N. A round takes 10 s:
//
//	go test -run - -bench Load -benchtime 2x ./internal/agent/health
func BenchmarkLoad(b *testing.B) {
	for _, kind := range []instance.CheckType{instance.HTTP, instance.TCP, instance.GRPC} {
		b.Run(string(kind), func(b *testing.B) { load(b, kind) })
	}
}

func load(b *testing.B, kind instance.CheckType) {
	const n = 10_000
	addrs := started(b, kind)
	var count, bad atomic.Int64
	rounds := make(chan struct{}, 1024)
	c := health.New(health.Config{Random: rand.NewPCG(1, 2).Uint64, Report: func(r health.Report) {
		if !r.Passing {
			bad.Add(1)
		}
		if count.Add(1)%n == 0 {
			rounds <- struct{}{}
		}
	}})
	before := heap()
	for i := range n {
		host, port, err := net.SplitHostPort(addrs[i%hosts])
		require.NoError(b, err)
		one := target(i)
		one.Host, one.Local, one.Check = host, true, instance.Check{Type: kind}
		_, err = fmt.Sscan(port, &one.Port)
		require.NoError(b, err)
		require.NoError(b, c.Set(one))
	}
	<-rounds // the first one is faster
	start, used := time.Now(), cpu()
	b.ResetTimer()
	for range b.N {
		<-rounds
	}
	b.StopTimer()
	busy, took := cpu()-used, time.Since(start)
	size := heap() - before
	b.ReportMetric(busy.Seconds()/took.Seconds(), "cpu-s/s")
	b.ReportMetric(float64(busy.Microseconds())/float64(b.N*n), "cpu-us/check")
	b.ReportMetric(float64(size)/n, "B/target")
	b.ReportMetric(float64(bad.Load()), "failed")
	b.ReportMetric(0, "ns/op")
	c.Close()
}

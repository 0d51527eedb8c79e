package main

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/frontend/dnsapi"
	"github.com/blackhole/blackhole/pkg/instance"
)

// known is the catalog with the additions of its owner.
type known struct {
	*catalog.Catalog
	expires time.Time
}

func (k known) LastBeat(instance.Key) (time.Time, bool) { return time.Time{}, false }

func (k known) Expires([]*instance.Instance) time.Time { return k.expires }

// serve is the server process: it prints its address, answers each line of stdin with its
// processor time, and ends with stdin.
func serve(o options, stdin io.Reader, stdout io.Writer) error {
	c := catalog.New(catalog.Config{})
	if err := c.Reset(2, instances(o.instances)); err != nil {
		return err
	}
	s, err := dnsapi.New(dnsapi.Config{Catalog: known{c, time.Now().Add(time.Hour)}, TTL: 30 * time.Second})
	if err != nil {
		return err
	}
	if err := s.Listen("127.0.0.1:0"); err != nil {
		return err
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	var running sync.WaitGroup
	running.Go(func() { _ = s.Serve() })
	defer running.Wait()
	defer s.Close()
	fmt.Fprintln(stdout, s.Addr())
	for lines := bufio.NewScanner(stdin); lines.Scan(); {
		fmt.Fprintln(stdout, int64(kit.Used()))
	}
	return nil
}

func instances(n int) []*instance.Instance {
	var list []*instance.Instance
	addr := netip.MustParseAddr("10.0.0.1")
	for k := range n {
		list = append(list, &instance.Instance{
			Key:    instance.Key{Namespace: instance.DefaultNamespace, Service: "payment", ID: "payment-" + strconv.Itoa(k)},
			Spec:   instance.Spec{Host: addr.String(), Port: 8080, Weight: 1},
			Status: instance.StatusUp, Revision: 2,
		})
		addr = addr.Next()
	}
	return list
}

// server is the server process, seen from outside.
type server struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	address string
}

func startServer(o options) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, "-serve", "-instances", strconv.Itoa(o.instances), "-profile", o.profile)}
	s.cmd.Stderr = os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	s.out = bufio.NewReader(out)
	if s.address, err = s.line(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func (s *server) line() (string, error) {
	text, err := s.out.ReadString('\n')
	return strings.TrimSpace(text), err
}

// used is the processor time of the server, user and system.
func (s *server) used() (time.Duration, error) {
	if _, err := io.WriteString(s.in, "\n"); err != nil {
		return 0, err
	}
	text, err := s.line()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return time.Duration(n), err
}

// stop ends the process by the end of its input.
func (s *server) stop() {
	_ = s.in.Close()
	_ = s.cmd.Wait()
}

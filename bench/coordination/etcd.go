package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/blackhole/blackhole/bench/kit"
	"github.com/blackhole/blackhole/pkg/fault"
)

// etcd is a cluster of three etcd with its driver, which uses etcd's own client.
type etcd struct {
	binary, driver, dir string
	log                 io.Writer

	nodes   []*kit.Process
	address []string // for clients, by index
}

func (e *etcd) name() string { return "etcd" }

func (e *etcd) servers() []*kit.Process { return e.nodes }

func (e *etcd) start(ctx context.Context) error {
	free, err := kit.Ports(2 * members)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.dir, 0o700); err != nil {
		return fault.As("start", fault.Invalid, err)
	}
	var cluster []string
	for i := range members {
		e.address = append(e.address, "127.0.0.1:"+free[2*i])
		cluster = append(cluster, fmt.Sprintf("n%d=http://127.0.0.1:%s", i, free[2*i+1]))
	}
	for i := range members {
		own, peer := "http://"+e.address[i], "http://127.0.0.1:"+free[2*i+1]
		e.nodes = append(e.nodes, &kit.Process{Binary: e.binary, Log: e.log, Args: []string{
			"--name", fmt.Sprint("n", i), "--data-dir", filepath.Join(e.dir, fmt.Sprint(i)),
			"--listen-client-urls", own, "--advertise-client-urls", own,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new", "--log-level", "error",
		}})
	}
	return e.mend(ctx)
}

func (e *etcd) mend(ctx context.Context) error {
	for _, n := range e.nodes {
		if !n.Runs() {
			if err := n.Start(); err != nil {
				return err
			}
		}
	}
	_, err := e.drive(ctx, task{Op: "ready", Duration: serving})
	return err
}

func (e *etcd) stop() {
	var all sync.WaitGroup
	for _, n := range e.nodes {
		all.Go(n.Stop)
	}
	all.Wait()
}

func (e *etcd) do(ctx context.Context, t task) (kit.Sample, error) { return e.drive(ctx, t) }

// drive runs the driver for one task.
func (e *etcd) drive(ctx context.Context, t task) (kit.Sample, error) {
	asked, err := json.Marshal(t)
	if err != nil {
		return kit.Sample{}, fault.As("drive", fault.Internal, err)
	}
	var pids []string
	for _, n := range e.nodes {
		pids = append(pids, strconv.Itoa(n.ID()))
	}
	cmd := exec.CommandContext(ctx, e.driver, "-endpoints", strings.Join(e.address, ","), "-pids", strings.Join(pids, ","), "-task", string(asked))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return kit.Sample{}, fault.New("drive", fault.Unavailable, "%s: %w", t.Op, err)
	}
	var got kit.Sample
	if err := json.Unmarshal(out, &got); err != nil {
		return kit.Sample{}, fault.As("drive", fault.Internal, err)
	}
	return got, nil
}

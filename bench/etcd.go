package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/process"
)

// etcd is a cluster of three etcd, or of our peers, with its driver, which uses etcd's own client.
type etcd struct {
	title          string
	binary, driver string
	args           [][]string
	nodes          []*process.Process
	address        []string // for clients, by index
}

func (s *session) startEtcd(ctx context.Context) (*etcd, error) {
	s.started++
	dir := filepath.Join(s.scratch, strconv.Itoa(s.started))
	driver, err := s.driver(ctx)
	if err != nil {
		return nil, err
	}
	e := &etcd{title: "etcd", binary: s.etcd, driver: driver, nodes: make([]*process.Process, members)}
	ports, err := process.FreePorts(2 * members)
	if err != nil {
		return nil, err
	}
	e.address = ports[:members]
	var cluster []string
	for i, at := range ports[members:] {
		cluster = append(cluster, fmt.Sprintf("n%d=http://%s", i, at))
	}
	for i := range members {
		own, peer := "http://"+e.address[i], "http://"+ports[members+i]
		e.args = append(e.args, []string{
			"--name", fmt.Sprint("n", i), "--data-dir", filepath.Join(dir, fmt.Sprint(i)),
			"--listen-client-urls", own, "--advertise-client-urls", own,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new", "--log-level", "error",
		})
	}
	if err := e.mend(ctx); err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// driver builds the driver of etcd.
func (s *session) driver(ctx context.Context) (path string, err error) {
	path = filepath.Join(s.scratch, "drive")
	return path, build(ctx, filepath.Join("bench", "coordination", "etcd"), path, ".")
}

// driven plays a part as grouped does, with our group behind its front for clients of etcd.
func driven(play func(*session, context.Context, []system) error) func(*session, context.Context) error {
	return grouped(func(s *session, ctx context.Context, all []system) (err error) {
		ours := &etcd{title: all[0].name(), address: s.fronts, nodes: all[0].servers()}
		if ours.driver, err = s.driver(ctx); err != nil {
			return err
		}
		return play(s, ctx, append([]system{ours}, all[1:]...))
	})
}

func (e *etcd) name() string { return e.title }

func (e *etcd) servers() []*process.Process { return e.nodes }

func (e *etcd) mend(ctx context.Context) (err error) {
	for i, n := range e.nodes {
		if n == nil || !n.Running() {
			if e.nodes[i], err = process.Run(fmt.Sprint("etcd-", i), exec.Command(e.binary, e.args[i]...), nil); err != nil {
				return err
			}
		}
	}
	_, err = e.do(ctx, order{Op: "ready", Duration: serving})
	return err
}

func (e *etcd) stop() {
	for _, n := range e.nodes {
		if n != nil {
			n.Stop()
		}
	}
}

// do runs the driver for one order.
func (e *etcd) do(ctx context.Context, o order) (got sample, err error) {
	asked, err := json.Marshal(o)
	if err != nil {
		return got, fault.As("etcd.do", fault.Internal, err)
	}
	var pids []string
	for _, n := range e.nodes {
		pids = append(pids, strconv.Itoa(n.PID()))
	}
	cmd := exec.CommandContext(ctx, e.driver, "-endpoints", strings.Join(e.address, ","), "-pids", strings.Join(pids, ","), "-task", string(asked))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return got, fault.New("etcd.do", fault.Unavailable, "%s: %w", o.Op, err)
	}
	return got, fault.As("etcd.do", fault.Internal, json.Unmarshal(out, &got))
}

package service

import (
	"context"
	"crypto/tls"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/remote"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// source is where a synchronizer reads instances, such as a cluster of Kubernetes.
type source interface {
	// list returns all instances by their ids. The status of each is Up or Down.
	list(ctx context.Context) (map[string]instance.Registration, error)
}

// handle is a registered instance, as client.InstanceHandle.
type handle interface {
	Update(ctx context.Context, s instance.Spec) error
	SetStatus(ctx context.Context, s instance.Status) error
	Close(ctx context.Context) error
	Done() <-chan struct{}
}

// synced is an instance of the source that the peer has.
type synced struct {
	handle
	reg instance.Registration // as the source had it last
}

// synchronizer keeps the instances of a source registered at a peer. It compares states, not events: a round lists
// the source, and registers, changes or deregisters what differs.
type synchronizer struct {
	con      *term.Console
	from     source
	register func(ctx context.Context, r instance.Registration) (handle, error)
	every    time.Duration

	have map[string]synced
	last int  // instances at the source, as said last; -1: none was said
	dark bool // the last round failed
}

// Sync makes the command sync.
func Sync(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sync", Short: "Keep the services of a Kubernetes cluster registered at this peer", Args: command.NoArgs,
		Long: "Register the endpoints behind the services of a Kubernetes cluster as instances of this\n" +
			"peer, with their readiness, and follow them. What ends in the cluster is deregistered, but\n" +
			"never while the cluster lists nothing: an empty list is often a fault. When this command\n" +
			"ends, the instances lapse as others do without heartbeats.\n\n" +
			"For keys use the tools of their protocols, since the peer speaks both: etcdctl make-mirror,\n" +
			"consul kv export and import.",
		Example: "  " + command.Program + " sync --from https://10.0.0.5:6443 --from-token-file t --from-ca ca.crt --namespace shop",
	}
	k, every := new(kubernetes), 10*time.Second
	r := remote.New(con, cmd, remote.DefaultTimeout)
	r.ConnectOnly = true
	f := cmd.Flags()
	var from, tokenFile, ca string
	f.StringVar(&from, "from", "", "URL of the cluster's API server (required)")
	f.StringVar(&tokenFile, "from-token-file", "", "file with the token for the API server")
	f.StringVar(&ca, "from-ca", "", "certificate authorities of the API server: a PEM file (default: the system's)")
	f.StringVar(&k.namespace, "namespace", "", "only this namespace of the cluster")
	f.DurationVar(&every, "every", every, "time between rounds, from 1s to 1h")
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		if every < time.Second || every > time.Hour {
			return fault.Invalidf("--every", every, "must be from 1s to 1h")
		}
		if err := k.open(con, from, tokenFile, ca); err != nil {
			return err
		}
		defer k.close()
		s := synchronizer{con: con, from: k, every: every, last: -1}
		s.register = func(ctx context.Context, reg instance.Registration) (handle, error) {
			return c.Services().Register(ctx, reg)
		}
		return s.run(ctx)
	})
}

// open checks the flags that name the API server. A token needs TLS, but on this machine.
func (k *kubernetes) open(con *term.Console, from, tokenFile, ca string) error {
	u, err := url.Parse(from)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return fault.Invalidf("--from", from, "must be the URL of an API server, such as https://10.0.0.5:6443")
	}
	var trust *tls.Config
	if u.Scheme == "https" {
		if trust, err = client.TLSFiles(ca, "", ""); err != nil {
			return fault.In("--from-ca", err)
		}
	}
	token := ""
	if tokenFile != "" {
		if token, err = remote.ReadToken(con, "--from-token-file", tokenFile); err != nil {
			return err
		}
		if trust == nil && !loopback(u.Hostname()) {
			return fault.Invalidf("--from", from, "must be https, because others could read the token on its way")
		}
	}
	k.connect(u, trust, token)
	return nil
}

// run synchronizes until ctx ends. It tells of a round that failed, and goes on.
func (s *synchronizer) run(ctx context.Context) error {
	s.have = make(map[string]synced)
	for {
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.con.Say("the round failed, and is repeated in %v: %v", s.every, err)
			s.dark = true
		}
		if !pause.For(ctx, s.every) {
			return fault.Wrap("", ctx.Err())
		}
	}
}

const roundTime = 5 * time.Minute // of one round

// round makes the peer's instances equal to those of the source. An instance that the peer refuses keeps no other one
// out.
func (s *synchronizer) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	want, err := s.from.list(ctx)
	if err != nil {
		return fault.In("--from", err)
	}
	var refused failures
	changed := 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		did, err := s.put(ctx, id, want[id])
		if err != nil && !refused.add(id, err) {
			return refused.err()
		}
		if did {
			changed++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.have)) {
		if _, wanted := want[id]; wanted || len(want) == 0 {
			continue
		}
		if err := s.have[id].Close(ctx); err != nil && !refused.add(id, err) {
			return refused.err()
		}
		delete(s.have, id)
		changed++
	}
	s.say(len(want), changed)
	return refused.err()
}

// put registers one instance, or changes it where it differs from the last round.
func (s *synchronizer) put(ctx context.Context, id string, want instance.Registration) (did bool, err error) {
	old, ok := s.have[id]
	if ok {
		select {
		case <-old.Done(): // the peer refused to have it again
			ok = false
		default:
		}
	}
	if !ok {
		old.reg = want
		old.reg.Status = instance.StatusUnknown // declares none; heartbeats make it UP
		if old.handle, err = s.register(ctx, old.reg); err != nil {
			return false, err
		}
		old.reg.Status = instance.StatusUp
		s.have[id] = old
		did = true
	}
	if !old.reg.Spec.Equal(want.Spec) {
		if err := old.Update(ctx, want.Spec); err != nil {
			return did, err
		}
		old.reg.Spec, did = want.Spec, true
		s.have[id] = old
	}
	if old.reg.Status != want.Status {
		if err := old.SetStatus(ctx, want.Status); err != nil {
			return did, err
		}
		old.reg.Status, did = want.Status, true
		s.have[id] = old
	}
	return did, nil
}

// say tells of a round that changed something, found another number, or followed a failed one.
func (s *synchronizer) say(found, changed int) {
	if found == s.last && changed == 0 && !s.dark {
		return
	}
	s.last, s.dark = found, false
	s.con.Say("%d instances at the source, %d changed here", found, changed)
	if found == 0 && len(s.have) > 0 {
		s.con.Say("the source is empty, so nothing is removed: end this command if that is meant")
	}
}

// failures are the instances that the peer refused.
type failures struct {
	n     int
	first error
}

// add counts one. It returns false after an error that all others would have, too.
func (f *failures) add(id string, err error) (goOn bool) {
	if f.n++; f.first == nil {
		f.first = fault.New("", fault.KindOf(err), "%s: %s", id, fault.Message(err))
	}
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		return false
	}
	return true
}

func (f *failures) err() error {
	if f.n == 0 {
		return nil
	}
	return fault.New("", fault.KindOf(f.first), "the peer refuses %d of them, the first is %w", f.n, f.first)
}

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
	from     source
	register func(ctx context.Context, r instance.Registration) (handle, error)

	have map[string]synced
}

// follower brings one side to the state of the other, round by round.
type follower struct {
	con   *term.Console
	every time.Duration
	round func(ctx context.Context) (report, error)

	said report // last
	dark bool   // the last round failed
}

// report is what a round found and did.
type report struct {
	found, changed int
	what           string // of the two numbers, with the verbs for both
	note           string // for people; "" if all is as usual
}

// Sync makes the command sync.
func Sync(con *term.Console) *cobra.Command {
	cmd := &cobra.Command{
		Use: "sync", Short: "Follow the services of a Kubernetes cluster, or let one follow those of here", Args: command.NoArgs,
		Long: "With --from, register the endpoints behind the services of a Kubernetes cluster as\n" +
			"instances of this peer, with their readiness, and follow them. What ends in the cluster is\n" +
			"deregistered, but never while the cluster lists nothing: an empty list is often a fault.\n" +
			"When this command ends, the instances lapse as others do without heartbeats.\n\n" +
			"With --to, write the instances of here as EndpointSlices of a cluster: each of its services\n" +
			"without selector that has the annotation " + serviceAnnotation + " gets the instances of the\n" +
			"service that it names, or namespace/service, and those that are UP are ready. An instance\n" +
			"serves the one port of such a service, or of several those whose names it has as tags. One\n" +
			"that came from a cluster, or whose host is no address that others reach, is left out. When\n" +
			"this command ends, or the peer lost contact, the slices stay as they are.\n\n" +
			"For keys use the tools of their protocols, since the peer speaks both: etcdctl make-mirror,\n" +
			"consul kv export and import.",
		Example: "  " + command.Program + " sync --from https://10.0.0.5:6443 --cluster-token-file t --cluster-ca ca.crt --namespace shop\n" +
			"  " + command.Program + " sync --to https://10.0.0.5:6443 --cluster-token-file t --cluster-ca ca.crt --namespace shop",
	}
	k, every := new(kubernetes), 10*time.Second
	r := remote.New(con, cmd, remote.DefaultTimeout)
	r.ConnectOnly = true
	f := cmd.Flags()
	var from, to, tokenFile, ca string
	f.StringVar(&from, "from", "", "URL of the API server whose services come here")
	f.StringVar(&to, "to", "", "URL of the API server that gets the services of here")
	f.StringVar(&tokenFile, "cluster-token-file", "", "file with the token for the API server")
	f.StringVar(&ca, "cluster-ca", "", "certificate authorities of the API server: a PEM file (default: the system's)")
	f.StringVar(&k.namespace, "namespace", "", "only this namespace of the cluster")
	f.DurationVar(&every, "every", every, "time between rounds, from 1s to 1h")
	cmd.MarkFlagsOneRequired("from", "to")
	cmd.MarkFlagsMutuallyExclusive("from", "to")
	return r.Calls(func(ctx context.Context, c *operator.Client, _ []string) error {
		if every < time.Second || every > time.Hour {
			return fault.Invalidf("--every", every, "must be from 1s to 1h")
		}
		flag, at := "--from", from
		if to != "" {
			flag, at = "--to", to
		}
		if err := k.open(con, flag, at, tokenFile, ca); err != nil {
			return err
		}
		defer k.close()
		l := follower{con: con, every: every, said: report{found: -1}}
		if to != "" {
			l.round = (&exporter{to: k, find: c.Services().Discover}).round
			return l.run(ctx)
		}
		l.round = newSynchronizer(k, func(ctx context.Context, reg instance.Registration) (handle, error) {
			return c.Services().Register(ctx, reg)
		}).round
		return l.run(ctx)
	})
}

// open checks the flags that name the API server. A token needs TLS, but on this machine.
func (k *kubernetes) open(con *term.Console, flag, at, tokenFile, ca string) error {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
		return fault.Invalidf(flag, at, "must be the URL of an API server, such as https://10.0.0.5:6443")
	}
	var trust *tls.Config
	if u.Scheme == "https" {
		if trust, err = client.TLSFiles(ca, "", ""); err != nil {
			return fault.In("--cluster-ca", err)
		}
	}
	token := ""
	if tokenFile != "" {
		if token, err = remote.ReadToken(con, "--cluster-token-file", tokenFile); err != nil {
			return err
		}
		if trust == nil && !loopback(u.Hostname()) {
			return fault.Invalidf(flag, at, "must be https, because others could read the token on its way")
		}
	}
	k.connect(u, trust, token)
	return nil
}

// run plays rounds until ctx ends. It tells of a round that failed, and goes on.
func (f *follower) run(ctx context.Context) error {
	for {
		limited, cancel := context.WithTimeout(ctx, roundTime)
		did, err := f.round(limited)
		cancel()
		if ctx.Err() == nil {
			f.say(did, err)
		}
		if !pause.For(ctx, f.every) {
			return fault.Wrap("", ctx.Err())
		}
	}
}

// say tells of a round that changed something, found another number, or followed a failed one.
func (f *follower) say(did report, err error) {
	if did.what != "" && (did.found != f.said.found || did.note != f.said.note || did.changed > 0 || f.dark) {
		f.said = did
		f.con.Say(did.what, did.found, did.changed)
		if did.note != "" {
			f.con.Say("%s", did.note)
		}
	}
	if f.dark = err != nil; f.dark {
		f.con.Say("the round failed, and is repeated in %v: %v", f.every, err)
	}
}

const roundTime = 5 * time.Minute // of one round

func newSynchronizer(from source, register func(context.Context, instance.Registration) (handle, error)) *synchronizer {
	return &synchronizer{from: from, register: register, have: make(map[string]synced)}
}

// round makes the peer's instances equal to those of the source. An instance that the peer refuses keeps no other one
// out.
func (s *synchronizer) round(ctx context.Context) (report, error) {
	want, err := s.from.list(ctx)
	if err != nil {
		return report{}, fault.In("--from", err)
	}
	refused, changed := failures{by: "the peer"}, 0
	for _, id := range slices.Sorted(maps.Keys(want)) {
		did, err := s.put(ctx, id, want[id])
		if err != nil && !refused.add(id, err) {
			return report{}, refused.err()
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
			return report{}, refused.err()
		}
		delete(s.have, id)
		changed++
	}
	did := report{found: len(want), changed: changed, what: "%d instances at the source, %d changed here"}
	if len(want) == 0 && len(s.have) > 0 {
		did.note = "the source is empty, so nothing is removed: end this command if that is meant"
	}
	return did, refused.err()
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

// failures are the objects that one side refused.
type failures struct {
	by    string
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
	return fault.New("", fault.KindOf(f.first), "%s refuses %d of them, the first is %w", f.by, f.n, f.first)
}

// Package daemon builds one peer from its planes and front ends, and starts and stops them in
// order. No other package imports all parts.
//
// Every part gets its logger, clock, randomness and recorder here. Parts know each other only
// through small interfaces that they declare.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/coordination"
	"github.com/blackhole/blackhole/internal/discovery"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/internal/platform/p2p"
	"github.com/blackhole/blackhole/internal/platform/store"
	"github.com/blackhole/blackhole/internal/trade"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	identityFile = "identity.key"
	registryDir  = "registry"
	dirMode      = 0o700
)

// Up is where a peer is reached that has started: addresses, or off.
type Up struct{ Network, Profile, Page, GRPC string }

// Options are what a peer gets from its program besides the settings.
type Options struct {
	Stderr  io.Writer // of the log
	Version string
	Joined  string // network that the peer has joined by an invitation now; "": none
	Alone   bool   // an invitation was asked for by an empty variable, and the settings name no other peer
	// Libraries gives the log to libraries that have one logger for the whole program: warnings of package log, and the errors of
	// others. May be nil.
	Libraries func(warnings, failures slog.Handler)
	Up        func(Up)                      // called once, when all parts have started; may be nil
	Again     func() (config.Config, error) // reads the settings again at SIGHUP; may be nil
}

// located has the whole path of the data directory: whoever examines the peer works in another directory.
func located(c config.Config) config.Config {
	if dir, err := filepath.Abs(c.Data); err == nil {
		c.Data = dir
	}
	return c
}

// Run runs a peer until ctx ends or a part fails.
// Errors: Invalid for settings that cannot work, or the cause of the part that failed.
func Run(ctx context.Context, c config.Config, o Options) error {
	c = located(c)
	log, journal := newJournal(c.Log, o.Stderr)
	if o.Libraries != nil {
		o.Libraries(newHandler(c.Log.Format, journal, &journal.level), newHandler(c.Log.Format, journal, slog.LevelError))
	}
	if o.Alone {
		log.Warn("BLACKHOLE_JOIN is empty, so this peer joins nobody and begins a network of its own; unset it if that is wanted")
	}
	if o.Joined != "" {
		log.Info("joined a network by an invitation; the next start needs none", "network", o.Joined)
	}
	hangups, release := catchSignals()
	defer release()
	listeners, err := listen(c)
	if err != nil {
		if p := running(c.Data); p != nil { // it has the ports, and would have the databases
			return fault.Wrap("daemon.Run", p.Err(fault.Unavailable, err))
		}
		return err
	}
	if c.IsLeaf() {
		saveMemory()
	}
	p, err := build(ctx, c, listeners, log, journal, o.Version)
	if err != nil {
		listeners.close()
		return fault.Wrap("daemon.Run", err)
	}
	if err := c.Remember(); err != nil {
		log.Warn("the next start needs --network again", "network", p.network.name.String(), "error", err)
	}
	p.fronts.auth.pages.address = p.pageAddress(listeners.http)
	now := Up{Network: p.network.name.String(), Profile: c.Profile, Page: cmp.Or(p.fronts.auth.pages.address, config.Off), GRPC: address(listeners.grpc)}
	log.Info("peer is up", "peer_id", p.node.Host().ID(), "network", now.Network, "profile", now.Profile, "version", o.Version, "data", c.Data,
		"listen", p.node.Addrs(), "http", address(listeners.http), "page", now.Page, "grpc", now.GRPC, "etcd", address(listeners.etcd), "dns", p.fronts.address())
	p.fronts.reloader.again, p.fronts.reloader.hangups = o.Again, hangups
	if o.Up != nil {
		o.Up(now)
	}
	manager, err := newManager(os.Getenv, os.Getpid())
	if err != nil {
		log.Warn("the service manager does not hear this peer, and may restart it", "error", err)
	}
	err = p.serve(ctx, listeners, manager)
	log.Info("peer is stopping", "cause", cmp.Or(context.Cause(ctx), err))
	p.discovery.Leave(context.WithoutCancel(ctx))
	err = errors.Join(err, p.close())
	log.Info("peer is stopped")
	return err
}

// Identity returns the peer id of a data directory, and creates both if they are missing.
func Identity(dataDir string) (string, error) {
	if err := os.MkdirAll(dataDir, dirMode); err != nil {
		return "", fault.As("daemon.Identity", fault.Invalid, fmt.Errorf("data: %w", err))
	}
	if err := owned(dataDir); err != nil {
		return "", fault.Wrap("daemon.Identity", err)
	}
	key, err := p2p.LoadIdentity(filepath.Join(dataDir, identityFile))
	if err != nil {
		return "", fault.Wrap("daemon.Identity", err)
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		return "", fault.As("daemon.Identity", fault.Internal, err)
	}
	return id.String(), nil
}

// owned refuses a data directory in which everybody could replace the identity. The group may write there: volumes of
// Kubernetes belong to a group.
func owned(dataDir string) error {
	info, err := os.Stat(dataDir)
	if err != nil {
		return fault.Invalidf("data", dataDir, "%w", err)
	}
	if mode := info.Mode().Perm(); runtime.GOOS != "windows" && mode&0o002 != 0 {
		return fault.Invalidf("data", dataDir, "has mode %04o: every user may write there (chmod o-w)", mode)
	}
	return nil
}

// Reclaim makes the offers of a stopped peer's data directory valid again, after another machine used its identity
// or the directory was restored from a backup. It returns their number. Errors: NotFound without an identity, which
// it does not create; Conflict for offers that are not suspended; and as registry.Open.
func Reclaim(dataDir string) (offers int, err error) {
	const op = "daemon.Reclaim"
	key, err := existingIdentity(dataDir)
	if err != nil {
		return 0, fault.Wrap(op, err)
	}
	offers, err = discovery.Reclaim(discovery.Config{Dir: filepath.Join(dataDir, registryDir), Key: key})
	return offers, fault.Wrap(op, err)
}

// existingIdentity returns the key of a data directory, or NotFound.
func existingIdentity(dataDir string) (crypto.PrivKey, error) {
	path := filepath.Join(dataDir, identityFile)
	if _, err := os.Stat(path); err != nil {
		return nil, fault.New("", fault.NotFound, "%s has no identity: %w", dataDir, err)
	}
	return p2p.LoadIdentity(path)
}

// serve runs the front ends until ctx ends or one fails. Then it stops all.
func (p *parts) serve(ctx context.Context, l listeners, m *manager) error {
	done, cancel := context.WithCancel(ctx)
	defer cancel()
	stops, ended := []func(){cancel}, make(chan error)
	start := func(serve func() error, stop func()) {
		stops = append(stops, stop)
		go func() { ended <- serve() }()
	}
	start(func() error { p.fronts.reloader.attend(done); return nil }, cancel)
	if _, set := os.LookupEnv("GOGC"); !set && !p.config.IsLeaf() {
		start(func() error { boundGarbage(done); return nil }, cancel)
	}
	start(func() error {
		if err := m.tell(done, p.describe); err != nil {
			p.log.Warn("the service manager did not hear this peer", "error", err)
		}
		return nil
	}, cancel)
	start(func() error { p.watch().Run(done); return nil }, cancel)
	f := &p.fronts
	l = l.bounded(newCallers(descriptors(), memoryLimit(), f.places.refused))
	if l.http != nil {
		start(func() error { return f.http.Serve(f.auth.secure(l.http, "h2", "http/1.1")) }, func() { f.http.Close() })
	}
	if l.unix != nil {
		start(func() error { return f.http.Serve(l.unix) }, func() { f.http.Close() })
	}
	if l.grpc != nil {
		start(func() error { return f.grpc.Serve(l.grpc) }, func() { f.grpc.Close() })
	}
	if l.etcd != nil {
		start(func() error { return f.etcd.Serve(f.auth.secure(l.etcd, "http/1.1", "h2"), f.etcdURL) }, func() { f.etcd.Close() })
	}
	if f.consul != nil {
		start(func() error { f.consul.Run(done); return nil }, cancel)
	}
	if f.dns != nil {
		start(f.dns.Serve, func() { f.dns.Close() })
	}
	if c := p.coordination; c != nil {
		start(func() error { return c.server.Serve(c.listener) }, func() { c.server.Close() })
		start(func() error { return c.await(done) }, cancel)
	}
	err := <-ended
	for _, stop := range stops {
		stop()
	}
	for range len(stops) - 2 {
		<-ended
	}
	return err
}

// listeners are opened first, so that a port in use fails at once. Nil means off.
type listeners struct{ http, grpc, unix, etcd net.Listener }

// bounded returns the listeners with bounds on their connections.
func (l listeners) bounded(by *access.Connections) listeners {
	for _, one := range []*net.Listener{&l.http, &l.grpc, &l.unix, &l.etcd} {
		if *one != nil {
			*one = by.Listener(*one)
		}
	}
	return l
}

func listen(c config.Config) (l listeners, err error) {
	if l.http, err = listenOn("http", c.HTTP); err != nil {
		return l, err
	}
	if l.grpc, err = listenOn("grpc", c.GRPC); err == nil {
		l.etcd, err = listenOn("etcd.listen", c.Etcd.Listen)
	}
	if err == nil {
		l.unix, err = listenUnix(c.Unix)
	}
	if err != nil {
		l.close()
	}
	return l, err
}

func listenOn(key, addr string) (net.Listener, error) {
	if addr == config.Off {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fault.Wrap("daemon.Run", fault.Invalidf(key, addr, "%w", err))
	}
	return l, nil
}

func (l listeners) close() {
	for _, one := range []net.Listener{l.http, l.grpc, l.unix, l.etcd} {
		if one != nil {
			one.Close()
		}
	}
}

func address(l net.Listener) string {
	if l == nil {
		return config.Off
	}
	return l.Addr().String()
}

// Examine reads what the start of a peer with these settings reads, by the same code, and changes nothing: its identity, its
// databases, its part in the group, keys and certificates. It returns what is wrong, in the words of the start, or the peer that
// runs on the directory: nobody reads what it writes.
func Examine(c config.Config, now time.Time) (runs *fault.Problem, found []fault.Problem) {
	c = located(c)
	tell := func(errs ...error) {
		for _, err := range errs {
			if err != nil {
				found = append(found, fault.ProblemOf(err))
			}
		}
	}
	tell(examineAuth(c, now))
	if _, err := os.Stat(c.Data); errors.Is(err, fs.ErrNotExist) {
		return nil, found
	}
	if runs = running(c.Data); runs != nil {
		return runs, found
	}
	key, err := ownIdentity(c.Data)
	if err != nil || key == nil {
		tell(err)
		return nil, found
	}
	id, err := peer.IDFromPrivateKey(key)
	if err != nil {
		tell(err)
		return nil, found
	}
	in := func(dir string) string { return filepath.Join(c.Data, dir) }
	_, keys := NetworkKeys(c.Data)
	tell(keys, offers.Examine(in(registryDir), id), registry.Examine(in(instancesDir), id.String()), trade.Examine(in(tradeDir), id.String()))
	founders, err := foundersOf(c.NetworkName(), c.Coordination)
	if tell(err); err == nil {
		tell(coordination.Examine(in(coordinationDir), c.Data, id, founders)...)
	}
	return nil, found
}

// running tells of another process that is the peer of the directory; nil: there is none.
func running(data string) *fault.Problem {
	pid := store.Holder(filepath.Join(data, registryDir))
	if pid <= 0 || pid == os.Getpid() {
		return nil
	}
	if stopped(pid) {
		return &fault.Problem{
			What:   fmt.Sprintf("process %d, the peer of %s, is frozen: a signal stopped it", pid, data),
			Effect: "it answers nobody, and keeps its ports and its directory",
			Remedy: fmt.Sprintf("Let it go on by `kill -CONT %d`, or end it by `kill -KILL %d` and start the peer again", pid, pid),
		}
	}
	return &fault.Problem{
		What: fmt.Sprintf("process %d is the peer of %s", pid, data), Effect: "a second one cannot start there",
		Remedy: fmt.Sprintf("Name its address with --grpc; if it answers nobody, look at it by `top -p %d`, end it by `kill %d`, and start the peer again", pid, pid),
	}
}

// stopped reports whether a signal stopped a process, where the system tells.
func stopped(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if state, ok := strings.CutPrefix(line, "State:"); ok {
			return strings.HasPrefix(strings.TrimSpace(state), "T")
		}
	}
	return false
}

// ownIdentity returns the key of a data directory; nil for one that was never used. Errors: those of p2p.LoadIdentity, and a
// problem for databases without the key of their owner.
func ownIdentity(data string) (crypto.PrivKey, error) {
	path := filepath.Join(data, identityFile)
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err := owned(data); err != nil {
			return nil, err
		}
		return p2p.LoadIdentity(path)
	}
	for _, dir := range []string{registryDir, instancesDir, tradeDir, coordinationDir} {
		if _, err := os.Lstat(filepath.Join(data, dir)); err == nil {
			return nil, fault.Problem{
				What: path + " is missing, and " + dir + " beside it belongs to the peer of that key", Effect: "this peer does not start",
				Remedy: "Restore it from a backup; or " + store.Aside(data) + ", start, and join the network again: it becomes a new peer",
			}.Err(fault.NotFound, nil)
		}
	}
	return nil, nil
}

// examineAuth reads tokens and certificates.
func examineAuth(c config.Config, now time.Time) error {
	a, o := accessConfig(c.Auth), access.Options{Now: func() time.Time { return now }}
	if a.Enabled {
		if _, err := access.New(a, o); err != nil {
			return fault.In("auth", err)
		}
	}
	files, err := access.NewTLS(a, o)
	if err != nil || files == nil {
		return fault.In("auth", err)
	}
	if p := certificateOf(c.Auth, files.Ends(), now); p != nil {
		return p.Err(fault.Unauthentic, nil)
	}
	return nil
}

// certificateOf says what the end of the server's certificate means now; nil while it is far.
func certificateOf(a config.Auth, ends, now time.Time) *fault.Problem {
	date := ends.UTC().Format(time.RFC3339)
	p := &fault.Problem{
		What: "the certificate in " + a.ServerCert + " ends at " + date, Effect: "clients refuse this peer from then on", State: fault.Coming,
		Remedy: "Put a new one there, and its key in " + a.ServerKey + ": the peer reads them without a restart",
	}
	switch left := ends.Sub(now); {
	case left > certificateLeft:
		return nil
	case left <= 0:
		p.What, p.Effect = "the certificate in "+a.ServerCert+" has expired at "+date, "clients refuse this peer"
		p.State, p.Since = fault.Now, ends
	}
	return p
}

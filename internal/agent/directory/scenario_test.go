package directory

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

var update = flag.Bool("update", false, "write the results of scenarios into their files")

// TestScenarios plays the stories in testdata. A line starting with ">" is a
// command; indented lines below it are its result. Run with -update to write
// results, and review the difference.
//
//	> peers a b                   add and start peers
//	> leader a                    a leads from now on; "leader none": nobody
//	> register b web/x [port] [@NAME]    the application registers at b, under an authenticated name
//	> change b web/x port         b reports a change without a registration
//	> deregister b web/x          the application leaves b
//	> cut b, reconnect b          b loses or regains contact to the group
//	> wait 10s                    time passes
//	> show a web                  the catalog of peer a
//	> read a web                  a linearizable read at a, with owners
//	> committed b web/x           the result of waiting for a commit
//	> lost b                      keys reported as lost to b
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var played string
			synctest.Test(t, func(t *testing.T) {
				s := &scenario{cluster: newCluster(t), peers: map[string]*peer{}}
				defer s.end()
				played = s.play(string(text))
			})
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(played), 0o644))
				return
			}
			require.Equal(t, string(text), played)
		})
	}
}

// scenario is a cluster told by a story.
type scenario struct {
	*cluster
	peers map[string]*peer
}

// play runs a story and returns it with its results.
func (s *scenario) play(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if strings.HasPrefix(line, "  ") {
			continue // a result, written again below
		}
		fmt.Fprintln(&out, line)
		if command, ok := strings.CutPrefix(line, "> "); ok {
			for result := range strings.Lines(s.run(strings.Fields(command))) {
				fmt.Fprintf(&out, "  %s\n", strings.TrimSpace(result))
			}
			synctest.Wait()
		}
	}
	return out.String()
}

func (s *scenario) run(args []string) string {
	switch args[0] {
	case "peers":
		for _, name := range args[1:] {
			s.peers[name] = s.add(name)
			s.peers[name].Start()
		}
		return ""
	case "leader":
		s.elect(strings.TrimPrefix(args[1], "none"))
		return ""
	case "wait":
		d, err := time.ParseDuration(args[1])
		require.NoError(s.t, err)
		time.Sleep(d)
		return ""
	}
	p := s.peers[args[1]]
	require.NotNil(s.t, p, "%v: no such peer", args)
	switch args[0] {
	case "register", "change", "deregister":
		p.Publish([]instances.Change{changeOf(s.t, args)})
		return ""
	case "cut", "reconnect":
		p.cut(args[0] == "cut")
		return ""
	case "show":
		return s.show(p, args[2])
	case "read":
		return s.read(p, args[2])
	case "committed":
		return committed(p, args[2])
	case "lost":
		return fmt.Sprint(s.lostBy(p))
	}
	s.t.Fatalf("%v: unknown command", args)
	return ""
}

// changeOf returns the change of a command: "register b web/x 81".
func changeOf(t *testing.T, args []string) instances.Change {
	service, id, ok := strings.Cut(args[2], "/")
	require.True(t, ok, "%v: service/id is missing", args)
	c := running(service, id)
	c.Instance.RegisteredAt = time.Now()
	if args[0] == "register" {
		c.Reason = instances.ReasonRegistered
	}
	if name := args[len(args)-1]; principals.IsNamed(name) {
		c.Instance.Principal, args = name, args[:len(args)-1]
	}
	if len(args) > 3 {
		_, err := fmt.Sscan(args[3], &c.Instance.Spec.Port)
		require.NoError(t, err)
	}
	if args[0] == "deregister" {
		c.Instance = nil
	}
	return c
}

// show describes a service in the catalog of a peer.
func (s *scenario) show(p *peer, service string) string {
	got, err := p.Catalog.Discover(s.t.Context(), instance.Query{
		Name: instance.Name{Namespace: "default", Service: service}, Selector: instance.Selector{AnyStatus: true},
	})
	require.NoError(s.t, err)
	var out strings.Builder
	for _, i := range got.Instances {
		fmt.Fprintf(&out, "%s at %s, port %d\n", i.ID, i.Peer, i.Spec.Port)
	}
	if len(got.Instances) == 0 {
		fmt.Fprintln(&out, "none")
	}
	if got.Stale {
		fmt.Fprintln(&out, "stale:", got.Reason)
	}
	return out.String()
}

// read describes a service in the directory.
func (s *scenario) read(p *peer, service string) string {
	list, _, err := p.Read(s.t.Context(), instance.Name{Namespace: "default", Service: service})
	if err != nil {
		return fmt.Sprint("error: ", fault.KindOf(err))
	}
	if len(list) == 0 {
		return "none"
	}
	var out strings.Builder
	for _, i := range list {
		fmt.Fprintf(&out, "%s at %s, port %d\n", i.ID, i.Peer, i.Spec.Port)
	}
	return out.String()
}

// committed waits at most 5 s for the commit of a key.
func committed(p *peer, name string) string {
	service, id, _ := strings.Cut(name, "/")
	ctx, cancel := context.WithTimeout(p.c.t.Context(), 5*time.Second)
	defer cancel()
	began := time.Now()
	_, err := p.Committed(ctx, instance.Key{Namespace: "default", Service: service, ID: id})
	if err != nil {
		cause := fault.Message(err)
		if errors.Is(err, context.DeadlineExceeded) {
			cause = "no commit within 5 s"
		}
		return fmt.Sprintf("%v: %s", fault.KindOf(err), cause)
	}
	if time.Since(began) > time.Second {
		return fmt.Sprint("yes, after ", time.Since(began).Round(time.Second))
	}
	return "yes"
}

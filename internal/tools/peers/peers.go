// Package peers runs peers of this tree as processes on loopback, for tests that play the clients of others against
// them.
package peers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Options are those of all peers of a group. The zero value is that of peers without settings.
type Options struct {
	Program string   // that Build made; "": it is built
	Env     []string // NAME=VALUE; FRONT in a value is the address of a front end that each peer has of its own
	Config  string   // text of the settings file; "": none
}

// Group is a network of peers. Its methods end the test where they fail.
type Group struct {
	Program string
	Peers   []*Peer

	options    Options
	dir, first string // first is the address of the first peer
}

// Peer is a peer of a group.
type Peer struct {
	HTTP, GRPC, Front string // addresses
	Data              string // folder
	ID                string // of the peer

	listen string
	run    *exec.Cmd
}

// New starts peers one after the other, and waits until each is ready and in the group: of three, all vote.
func New(t testing.TB, count int, o Options) *Group {
	t.Helper()
	g := &Group{Program: cmp.Or(o.Program, Build(t)), options: o, dir: t.TempDir()}
	if o.Config != "" {
		g.Configure(t, o.Config)
	}
	for range count {
		g.Add(t)
	}
	return g
}

// Add adds a peer. A second one stays a learner: the group has one voter or three.
func (g *Group) Add(t testing.TB) {
	t.Helper()
	n := len(g.Peers)
	p := &Peer{
		listen: "/ip4/127.0.0.1/tcp/" + Port(t),
		HTTP:   "127.0.0.1:" + Port(t), GRPC: "127.0.0.1:" + Port(t), Front: "127.0.0.1:" + Port(t),
		Data: filepath.Join(g.dir, fmt.Sprint(n)),
	}
	g.Peers = append(g.Peers, p)
	t.Cleanup(func() {
		if log, _ := os.ReadFile(p.Data + ".log"); t.Failed() {
			t.Logf("the log of peer %d ends with\n%s", n, log[max(len(log)-4096, 0):])
		}
	})
	t.Cleanup(func() { g.Kill(n) })
	g.Start(t, n)
	if g.options.Config != "" { // it answers whoever has a token
		Eventually(t, "the peer is ready", time.Minute, func() bool { return answers("http://" + p.HTTP + "/readyz") })
		return
	}
	var status struct {
		ID     string   `json:"peer_id"`
		Listen []string `json:"listen"`
	}
	Eventually(t, "the group has the peer", 2*time.Minute, func() bool {
		var group struct{ Voters, Learners []any }
		err := get("http://"+p.HTTP+"/v1/coordination/group", &group)
		voters, learners := len(group.Voters), len(group.Learners)
		return err == nil && voters+learners == n+1 && (n != 2 || voters == 3) &&
			get("http://"+p.HTTP+"/v1/status", &status) == nil && answers("http://"+p.HTTP+"/readyz")
	})
	if p.ID = status.ID; n == 0 {
		g.first = status.Listen[0]
	}
}

// Long skips a test that waits for elections and for ends of leases.
func Long(t *testing.T) {
	t.Helper()
	if os.Getenv("TEST_LONG") == "" {
		t.Skip("waits for a minute and more: set TEST_LONG=1, as .ci/night does")
	}
}

// Start runs a peer, and waits until it answers.
func (g *Group) Start(t testing.TB, n int) {
	t.Helper()
	p := g.Peers[n]
	args := []string{
		"run", "--data", p.Data, "--http", p.HTTP, "--grpc", p.GRPC, "--dns", "off", "--listen", p.listen,
		"--network", "test-" + strings.TrimPrefix(g.Peers[0].HTTP, "127.0.0.1:"), // none but these peers have it
	}
	if g.options.Config != "" {
		args = append(args, "--config", g.config())
	}
	if n > 0 {
		args = append(args, "--bootstrap", g.first)
	}
	log, err := os.OpenFile(p.Data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer func() { must(t, log.Close()) }()
	p.run = exec.Command(g.Program, args...)
	p.run.Env, p.run.Stdout, p.run.Stderr = os.Environ(), log, log
	for _, v := range g.options.Env {
		p.run.Env = append(p.run.Env, strings.ReplaceAll(v, "FRONT", p.Front))
	}
	must(t, p.run.Start())
	Eventually(t, "the peer answers", time.Minute, func() bool { return answers("http://" + p.HTTP + "/livez") })
}

// Stop ends a peer as an operator does.
func (g *Group) Stop(t testing.TB, n int) {
	t.Helper()
	must(t, g.Peers[n].run.Process.Signal(os.Interrupt))
	must(t, g.Peers[n].run.Wait())
}

// Kill ends a peer at once.
func (g *Group) Kill(n int) {
	if run := g.Peers[n].run; run != nil && run.Process != nil {
		_ = run.Process.Kill()
		_ = run.Wait()
	}
}

// Leader returns the number of the peer that leads, as the first peer sees it.
func (g *Group) Leader(t testing.TB) (n int) {
	t.Helper()
	Eventually(t, "a peer leads", time.Minute, func() bool {
		var group struct{ Leader string }
		if get("http://"+g.Peers[0].HTTP+"/v1/coordination/group", &group) != nil {
			return false
		}
		for at, p := range g.Peers {
			if p.ID == group.Leader {
				n = at
				return true
			}
		}
		return false
	})
	return n
}

func (g *Group) config() string { return filepath.Join(g.dir, "settings.yaml") }

// Configure writes the settings file. Peers read it when they start, and after Reload.
func (g *Group) Configure(t testing.TB, text string) {
	t.Helper()
	must(t, os.WriteFile(g.config(), []byte(text), 0o600))
}

// Reload has a peer read its settings again.
func (g *Group) Reload(t testing.TB, n int) {
	t.Helper()
	must(t, g.Peers[n].run.Process.Signal(syscall.SIGHUP))
}

// Build builds the program of this tree, for a test in a folder beside this one. Call it before t.Parallel: then one
// test links, and the others find it.
func Build(t testing.TB) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "blackholed")
	// "go run" keeps what it has linked.
	Output(t, "../../..", "go", "run", "-tags=lab", "-exec=cp", "./cmd/blackholed", program)
	return program
}

// Output runs a program in a folder, and returns what it prints.
func Output(t testing.TB, folder, program string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, args...)
	c.Dir = folder
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// Eventually waits until what a test waits for is so.
func Eventually(t testing.TB, what string, most time.Duration, is func() bool) {
	t.Helper()
	for end := time.Now().Add(most); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s it is not so that %s", most, what)
		}
	}
}

// client asks peers. A peer without a majority may take seconds to answer.
func client() *http.Client { return &http.Client{Timeout: 10 * time.Second} }

func answers(url string) bool {
	answer, err := client().Get(url)
	return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
}

// get reads an answer in JSON.
func get(url string, into any) error {
	answer, err := client().Get(url)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// Port returns a free one. Systems assign none below 32,000 to clients or to listeners on port 0, so it is likely to stay free
// until who asked listens.
func Port(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(16_000 + rand.IntN(16_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			must(t, l.Close())
			return port
		}
	}
	t.Fatal("no free port of 100 between 16,000 and 32,000")
	return ""
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

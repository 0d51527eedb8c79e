package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// script is a stand-in for blackholed.
func script(t *testing.T, body string) Spec {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	path := filepath.Join(t.TempDir(), "blackholed")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700))
	return Spec{Name: "peer-1", Binary: path, Data: "d", Bootstrap: []string{"/x", "/y"}, Check: 2 * time.Second}
}

func TestArguments(t *testing.T) {
	t.Setenv("BLACKHOLE_DATA", "mine")
	p, err := Start(script(t, `echo "$@"; env | grep BLACKHOLE_`))
	require.NoError(t, err)
	<-p.Exited()
	said := p.log.String()
	require.Contains(t, said, "run --profile dev --data d --listen /ip4/127.0.0.1/tcp/0 --http "+p.HTTP+" --grpc "+p.GRPC+" --dns "+p.DNS+
		" --bootstrap /x --bootstrap /y")
	require.NotEqual(t, p.HTTP, p.GRPC)
	require.NotContains(t, said, "BLACKHOLE_DATA=")
	p.Stop() // of one that is gone
	require.Zero(t, p.Resident())
}

func TestLastWords(t *testing.T) {
	var shown bytes.Buffer
	s := script(t, `echo hello; echo "listen tcp: bind: address already in use" >&2; exit 3`)
	s.Log = &shown
	p, err := Start(s)
	require.NoError(t, err)
	<-p.Exited()
	require.True(t, p.Clashed())
	require.ErrorContains(t, p.Failure(), "exit status 3")
	require.ErrorContains(t, p.Failure(), "address already in use")
	require.Contains(t, shown.String(), "peer-1 | hello\n")
}

func TestKill(t *testing.T) {
	p, err := Start(script(t, "exec cat /dev/zero >/dev/null"))
	require.NoError(t, err)
	require.True(t, p.Running())
	if runtime.GOOS == "linux" { // which counts the first pages of a process roughly
		require.Eventually(t, func() bool { return p.Resident() > 0 }, time.Minute, time.Millisecond)
	}
	p.Kill()
	require.False(t, p.Running())
	require.False(t, p.Clashed())
}

func TestPause(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	p, err := Start(script(t, "exec cat /dev/zero >/dev/null"))
	require.NoError(t, err)
	state := func() string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		require.NoError(t, err)
		return string(text[bytes.LastIndexByte(text, ')')+2])
	}
	require.NoError(t, p.Pause())
	require.Eventually(t, func() bool { return state() == "T" }, time.Minute, time.Millisecond)
	require.NoError(t, p.Resume())
	require.Eventually(t, func() bool { return state() != "T" }, time.Minute, time.Millisecond)
	require.NoError(t, p.Pause())
	p.Kill()
	require.Error(t, p.Pause(), "of one that is gone")
}

func TestPlace(t *testing.T) {
	s, within := script(t, `echo "$@"`), false
	s.Place = Place{Listen: "/ip4/10.0.0.1/tcp/1", HTTP: "127.0.0.1:2", GRPC: "127.0.0.1:3", Within: func(start func() error) error {
		within = true
		return start()
	}}
	p, err := Start(s)
	require.NoError(t, err)
	<-p.Exited()
	require.True(t, within)
	require.Contains(t, p.log.String(), "--listen /ip4/10.0.0.1/tcp/1 --http 127.0.0.1:2 --grpc 127.0.0.1:3")
}

func TestStop(t *testing.T) {
	p, err := Start(script(t, "exec cat /dev/zero >/dev/null"))
	require.NoError(t, err)
	p.Stop()
	require.ErrorContains(t, p.Failure(), "terminated")
}

func TestTail(t *testing.T) {
	l := newTail("x", nil)
	for i := range 100 {
		fmt.Fprintf(l, "li")
		fmt.Fprintf(l, "ne %d\n", i)
	}
	fmt.Fprint(l, strings.Repeat("y", 3*tailLine))
	said := l.String()
	require.NotContains(t, said, "line 69\n")
	require.Contains(t, said, "line 70\nline 71\n")
	require.True(t, strings.HasSuffix(said, "line 99\n"+strings.Repeat("y", tailLine)))
}

// TestUsed: a process that writes is charged for it, and one that ended has no figures.
func TestUsed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	p, err := Start(script(t, "exec cat /dev/zero >/dev/null"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		u, err := p.Used()
		return err == nil && u.CPU > 0 && u.Written > 1<<20
	}, time.Minute, time.Millisecond)
	p.Kill()
	_, err = p.Used()
	require.Error(t, err)
}

//go:build unix

package daemon

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/operator"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
)

// lines is a log that a test reads while it grows.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// of returns the lines with a word.
func (l *lines) of(word string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, word) {
			found = append(found, line)
		}
	}
	return found
}

// TestHangup sends SIGHUP to a running peer after each change of its settings file. A mistake leaves everything as it was,
// with one line; a revoked token is refused; the peer never ends.
func TestHangup(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "settings.yaml")
	settings := func(level, tokens, more string) {
		text := fmt.Sprintf("data: %s\nhttp: \"off\"\ndns: \"off\"\ngrpc: 127.0.0.1:0\nlisten: [/ip4/127.0.0.1/tcp/0]\nlog: {level: %s}\nauth: {anonymous: none, tokens: [%s]}\n%s\n",
			filepath.Join(dir, "data"), level, tokens, more)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	const ops, web = "{token: token-of-ops-0123456789, name: ops, role: admin}", "{token: token-of-web-0123456789, name: web, role: read-only}"
	settings("info", ops+","+web, "")
	load := func() (config.Config, error) {
		c, _, err := config.Load(config.Source{File: file})
		return c, err
	}
	c, err := load()
	require.NoError(t, err)

	var log lines
	ctx, stop := context.WithCancel(t.Context())
	up, done := make(chan Up, 1), make(chan error, 1)
	go func() {
		done <- Run(ctx, c, Options{Stderr: &log, Version: "test", Again: load, Up: func(u Up) { up <- u }})
	}()
	address := (<-up).GRPC
	accepted := func(token string) bool {
		cl, err := operator.New(address, client.WithToken("token-of-"+token+"-0123456789"))
		require.NoError(t, err)
		defer cl.Close()
		_, err = cl.Status(t.Context())
		if err != nil {
			require.ErrorIs(t, err, fault.Unauthentic)
		}
		return err == nil
	}
	require.True(t, accepted("ops") && accepted("web"))

	for _, step := range []struct {
		name                string
		level, tokens, more string
		line                string // what the line of this hangup says
		web                 bool   // the token of web is accepted afterwards
	}{
		{"nothing changed", "info", ops + "," + web, "", "level=INFO", true},
		{"an unknown level", "loud", ops, "", "field=log.level", true},
		{"a role that does not exist", "debug", "{token: token-of-ops-0123456789, role: king}", "", "field=auth.tokens[0].role", true},
		{"no YAML", "info", ops + "]]", "", "field=config", true},
		{"a missing file", "info", "{token_file: " + dir + "/none, role: admin, name: ops}", "", "field=auth.tokens[0].token_file", true},
		{"no authentication", "info", "", "", "field=auth.enabled", true},
		{"another setting", "info", ops + "," + web, "dns_ttl: 40s", "restart_for=[dns_ttl", true},
		{"a revoked token and a level", "warn", ops, "", "", false},
		{"the token again", "info", ops + "," + web, "", "level=INFO", true},
	} {
		before := len(log.of("SIGHUP"))
		settings(step.level, step.tokens, step.more)
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
		if step.line == "" { // the new level keeps the line out
			until(t, step.name, func() bool { return accepted("web") == step.web })
		} else {
			until(t, step.name, func() bool { return len(log.of("SIGHUP")) > before })
			require.Contains(t, log.of("SIGHUP")[before], step.line, step.name)
		}
		require.True(t, accepted("ops"), step.name)
		require.Equal(t, step.web, accepted("web"), step.name)
	}
	stop()
	require.NoError(t, <-done)
}

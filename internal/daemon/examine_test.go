package daemon

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// TestExamineSaysWhatTheStartSays: with one damage to the directory of a stopped peer, Examine finds one problem with file, effect and
// remedy, changes nothing, and the start fails, or its member stops, with the same words.
func TestExamineSaysWhatTheStartSays(t *testing.T) {
	if testing.Short() {
		t.Skip("starts peers")
	}
	settings := func(data string) config.Config {
		c := config.Default()
		c.Data, c.Profile, c.HTTP, c.GRPC, c.DNS, c.Unix = data, "dev", config.Off, "127.0.0.1:0", config.Off, config.Off
		c.Listen, c.Log.Level = []string{"/ip4/127.0.0.1/tcp/0"}, "info"
		return c
	}
	whole := filepath.Join(t.TempDir(), "whole")
	require.NoError(t, runOnce(t, settings(whole), io.Discard))
	runs, found := Examine(settings(whole), time.Now())
	require.Nil(t, runs)
	require.Empty(t, found)

	scribble := func(pattern string, at int64) func(t *testing.T, data string) {
		return func(t *testing.T, data string) {
			files, err := filepath.Glob(filepath.Join(data, pattern))
			require.NoError(t, err)
			require.NotEmpty(t, files)
			f, err := os.OpenFile(files[0], os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt(bytes.Repeat([]byte("damage"), 20), at)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	cut := func(name string) func(t *testing.T, data string) {
		return func(t *testing.T, data string) { require.NoError(t, os.Truncate(filepath.Join(data, name), 9)) }
	}
	remove := func(pattern string) func(t *testing.T, data string) {
		return func(t *testing.T, data string) {
			files, err := filepath.Glob(filepath.Join(data, pattern))
			require.NoError(t, err)
			require.NotEmpty(t, files)
			require.NoError(t, os.Remove(files[0]))
		}
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, data string)
		file   string // below the directory
		does   string // part of the effect
		runs   bool   // without its member
	}{
		"identity":      {scribble("identity.key", 0), "identity.key", "does not start", false},
		"identity gone": {remove("identity.key"), "identity.key", "does not start", false},
		"identity for all": {func(t *testing.T, data string) {
			require.NoError(t, os.Chmod(filepath.Join(data, "identity.key"), 0o644))
		}, "identity.key", "can read", false},
		"offers, list":         {scribble("registry/MANIFEST-*", 8), "registry", "does not start", false},
		"offers, list gone":    {remove("registry/MANIFEST-*"), "registry", "does not start", false},
		"offers, writes":       {scribble("registry/*.log", 8), "registry", "does not start", false},
		"instances, mark":      {cut("instances/mark"), "instances", "does not start", false},
		"instances, mark gone": {remove("instances/mark"), "instances", "does not start", false},
		"group, log":           {scribble("coordination/raft/log/*.log", 8), "coordination/raft", "no member of the group", true},
		"group, log's list":    {scribble("coordination/raft/log/MANIFEST-*", 8), "coordination/raft", "no member of the group", true},
		"group, snapshot":      {scribble("coordination/raft/snapshots/*", 30), "coordination/raft/snapshots", "no member of the group", true},
		"group, snapshot gone": {remove("coordination/raft/snapshots/*"), "coordination/raft/snapshots", "no member of the group", true},
		"group, memory":        {scribble("coordination/bootstrap/group", 0), "coordination/bootstrap/group", "founds no group", true},
		"group, memory gone":   {remove("coordination/bootstrap/group"), "coordination/bootstrap/group", "founds no group", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := filepath.Join(t.TempDir(), "data")
			require.NoError(t, os.CopyFS(data, os.DirFS(whole)))
			require.NoError(t, os.Chmod(data, 0o700))
			for _, secret := range []string{identityFile, "network.yaml"} {
				require.NoError(t, os.Chmod(filepath.Join(data, secret), 0o600))
			}
			c.damage(t, data)
			before := contentOf(t, data)
			_, found := Examine(settings(data), time.Now())
			require.Equal(t, before, contentOf(t, data), "nothing changed")
			require.Len(t, found, 1)
			is := found[0]
			require.Contains(t, is.What, filepath.Join(data, c.file))
			require.Contains(t, is.Effect, c.does)
			require.Contains(t, is.Remedy, "`")
			for _, bad := range []string{"goroutine", "carrier", "perhaps", "pebble", ".go:"} {
				require.NotContains(t, is.String(), bad)
			}

			var log bytes.Buffer
			defer func() { t.Log(log.String()) }()
			err := runOnce(t, settings(data), &log)
			if !c.runs {
				require.Equal(t, is, fault.ProblemOf(err))
				return
			}
			require.NoError(t, err)
			require.Contains(t, strings.ReplaceAll(log.String(), `\"`, `"`), is.What)
		})
	}
}

// contentOf reads all files below a directory but the empty locks.
func contentOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		files[path] = string(text)
		return err
	}))
	return files
}

// settled ends a peer whose log tells how its part in the group began.
type settled struct {
	io.Writer
	end context.CancelFunc
}

func (s settled) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("the group has a leader")) || bytes.Contains(line, []byte("condition=member_stopped")) || bytes.Contains(line, []byte("condition=no_")) {
		s.end()
	}
	return s.Writer.Write(line)
}

// runOnce runs a peer until its log tells how its part in the group began.
func runOnce(t *testing.T, c config.Config, log io.Writer) error {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	return Run(ctx, c, Options{Stderr: settled{log, end}, Version: "v0"})
}

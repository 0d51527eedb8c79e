package agents

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Lock files lose the edit of who took the file over from an agent that froze, and the report says so.
func TestLockFilesLoseEdits(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := Config{Agents: 6, Files: 20, Edits: 200, Seed: 1, TTL: 5 * time.Second, Dir: dir}
		w, err := ByStamps(c)
		require.NoError(t, err)
		row, err := Play(t.Context(), c, w)
		require.NoError(t, err)
		require.Positive(t, row.Frozen)
		require.Positive(t, row.Lost)
		require.Positive(t, row.Older)
		require.False(t, row.Held())
	})
}

// lossless is a way in which each fault can be made: a folder whose writes are refused, or not, by the test.
type lossless struct {
	folder
	stamps
	drop, twice bool
}

func (s *lossless) write(ctx context.Context, a *agent, e edit) (verdict, error) {
	switch {
	case s.drop:
		s.drop = false
		return accepted, nil
	case s.twice:
		s.twice = false
		for file, text := range e.texts {
			e.texts[file] = text + e.line + "\n"
		}
	}
	return s.folder.write(ctx, a, e)
}

// The report finds an edit that is not in the files, and one that stands there twice.
func TestReport(t *testing.T) {
	for name, s := range map[string]*lossless{"held": {}, "lost": {drop: true}, "foreign": {twice: true}} {
		t.Run(name, func(t *testing.T) {
			c := Config{Agents: 1, Files: 3, Edits: 6, Seed: 1, TTL: 5 * time.Second, Dir: t.TempDir()}
			synctest.Test(t, func(t *testing.T) {
				s.folder.dir, s.stamps.dir, s.stamps.ttl, s.last = c.Dir, c.Dir, c.TTL, map[string]int64{}
				require.NoError(t, fill(c.Dir, c.Files))
				row, err := Play(t.Context(), c, Way{locks: &s.stamps, store: s})
				require.NoError(t, err)
				require.Equal(t, name == "held", row.Held(), "%+v", row)
				require.Equal(t, name == "lost", row.Lost > 0)
				require.Equal(t, name == "foreign", row.Foreign > 0)
			})
		})
	}
}

// The check of a repository finds a token below the last one of its file, and a commit that takes a line away.
func TestHistory(t *testing.T) {
	older, removed, err := history(strings.NewReader("agent-01 7\n\nfile-0001.txt 5\n\n--- a/file-0001.txt\n+++ b/file-0001.txt\n+agent-01 7\n" +
		"agent-02 8\n\nfile-0001.txt 4\nfile-0002.txt 4\nagent-02 9\nfile-0002.txt 4\n"))
	require.NoError(t, err)
	require.Equal(t, 1, older)
	require.Empty(t, removed)
	older, removed, err = history(strings.NewReader("agent-01 7\nfile-0001.txt 5\nagent-02 7\nfile-0001.txt 5\n-agent-01 7\n"))
	require.NoError(t, err)
	require.Equal(t, 1, older, "two agents with one token")
	require.Equal(t, "-agent-01 7", removed)
}

package daemon

import (
	"bytes"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxJournal bounds the kept end of the log, in bytes.
const maxJournal = 256 << 10

// journal is the output of the log. It keeps the last lines, and has the level.
type journal struct {
	out   io.Writer
	level slog.LevelVar

	lost atomic.Int64 // lines that the output did not take

	mu   sync.Mutex
	kept []byte
}

// newJournal returns a logger with the configured level and format, and its output.
func newJournal(c config.Log, out io.Writer) (*slog.Logger, *journal) {
	j := &journal{out: out}
	if _, err := j.setLevel(c.Level); err != nil {
		j.level.Set(slog.LevelInfo) // config.Validate allows only known levels
	}
	return slog.New(newHandler(c.Format, j, &j.level)), j
}

func newHandler(format string, out io.Writer, level slog.Leveler) slog.Handler {
	opts := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.NewJSONHandler(out, opts)
	}
	return slog.NewTextHandler(out, opts)
}

// setLevel takes the name of a level in any letter case and returns the level before.
func (j *journal) setLevel(name string) (previous string, err error) {
	if levels := []string{"debug", "info", "warn", "error"}; !slices.Contains(levels, strings.ToLower(name)) {
		return "", fault.Invalidf("level", name, "must be one of %s, not %q", strings.Join(levels, ", "), name)
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return "", fault.Invalidf("level", name, "%w", err)
	}
	previous = strings.ToLower(j.level.Level().String())
	j.level.Set(level)
	return previous, nil
}

// Write implements io.Writer. A line is kept also if the output is gone.
func (j *journal) Write(line []byte) (int, error) {
	j.mu.Lock()
	j.kept = append(j.kept, line...)
	if len(j.kept) > 2*maxJournal { // rarely, because it copies
		j.kept = slices.Clone(j.last())
	}
	j.mu.Unlock()
	n, err := j.out.Write(line)
	if err != nil {
		j.lost.Add(1)
	}
	return n, err
}

// last returns the kept whole lines. The caller holds mu.
func (j *journal) last() []byte {
	if len(j.kept) <= maxJournal {
		return j.kept
	}
	end := j.kept[len(j.kept)-maxJournal:]
	return end[bytes.IndexByte(end, '\n')+1:]
}

// lines returns a copy of the last lines.
func (j *journal) lines() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.last())
}

package nemesis

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blackhole/blackhole/testnet/nemesis/history"
)

// recorder has the clock of a run and records its operations and events.
type recorder struct {
	began time.Time
	ids   atomic.Int64

	mu         sync.Mutex // guards what follows
	ops        []history.Op
	violations []history.Violation
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

// now is the time since the start, on the monotonic clock.
func (r *recorder) now() time.Duration { return time.Since(r.began) }

// begin assigns an id and the call time to an operation.
func (r *recorder) begin(o history.Op) history.Op {
	o.ID, o.Call = r.ids.Add(1), r.now()
	return o
}

// end records an operation with return time and outcome.
func (r *recorder) end(o history.Op, outcome history.Outcome, err error) history.Op {
	o.Return, o.Outcome = r.now(), outcome
	if err != nil {
		o.Error = err.Error()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, o)
	return o
}

// violated records a violation outside the reach of the history checks.
func (r *recorder) violated(rule, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, history.Violation{Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

func (r *recorder) operations() []history.Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ops)
}

func (r *recorder) found() []history.Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.violations)
}

// write stores the whole history in a directory: operations, events, report.
func (r *recorder) write(dir string, report *Report, events []history.Event) error {
	return errors.Join(
		writeLines(filepath.Join(dir, "operations.jsonl"), r.operations()),
		writeLines(filepath.Join(dir, "events.jsonl"), events),
		writeLines(filepath.Join(dir, "report.json"), []*Report{report}),
	)
}

func writeLines[T any](path string, lines []T) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	return w.Flush()
}

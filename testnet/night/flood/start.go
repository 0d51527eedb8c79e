package flood

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/testnet/process"
)

// ends bounds the time from the end of a flood until its report.
const ends = 20 * time.Second

// Start starts a flood as a child of this process, within a network namespace, and returns its end.
func Start(ctx context.Context, program string, o Order, within func(func() error) error, log io.Writer) (end func() (Report, error), err error) {
	const op = "flood.Start"
	o.Most += ends
	order, err := json.Marshal(o)
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	cmd := exec.CommandContext(ctx, program, Command, string(order))
	cmd.Env, cmd.SysProcAttr = append(os.Environ(), "GOMAXPROCS=1", "GOMEMLIMIT=128MiB"), process.Orphanless()
	cmd.Stderr, cmd.WaitDelay = log, ends
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	in, err := cmd.StdinPipe() // the flood ends with it, so also with this process
	if err != nil {
		return nil, fault.As(op, fault.Internal, err)
	}
	if err := within(cmd.Start); err != nil {
		return nil, fault.As(op, fault.Unavailable, err)
	}
	lines := bufio.NewReader(out)
	if line, err := lines.ReadString('\n'); err != nil || strings.TrimSpace(line) != Ready {
		_ = cmd.Process.Kill()
		return nil, fault.New(op, fault.Unavailable, "the flood %s did not begin: %q: %w", o.Row, line, errors.Join(err, cmd.Wait()))
	}
	return func() (r Report, err error) {
		patience := time.AfterFunc(ends, func() { _ = cmd.Process.Kill() })
		defer patience.Stop()
		_ = in.Close()
		err = json.NewDecoder(lines).Decode(&r)
		_, _ = io.Copy(io.Discard, lines)
		return r, fault.As(op, fault.Unavailable, errors.Join(err, cmd.Wait()))
	}, nil
}

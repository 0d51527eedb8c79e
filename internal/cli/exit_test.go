package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/cli/command"
	"github.com/blackhole/blackhole/internal/cli/exit"
	"github.com/blackhole/blackhole/internal/cli/settings"
	"github.com/blackhole/blackhole/internal/cli/term"
	"github.com/blackhole/blackhole/internal/platform/config"
	"github.com/blackhole/blackhole/pkg/fault"
)

func TestExitCodesOfScripts(t *testing.T) {
	for kind, code := range map[fault.Kind]int{
		fault.Internal: 1, fault.Invalid: 2, fault.Unprocessable: 2, fault.NotFound: 3, fault.Gone: 3, fault.Exists: 4, fault.Conflict: 4, fault.LimitReached: 4, fault.PoolExhausted: 4,
		fault.Timeout: 5, fault.Unavailable: 69, fault.Canceled: 130,
	} {
		require.Equal(t, code, exit.CodeOf(fault.New("op", kind, "text")), kind.String())
	}
}

func TestInterrupted(t *testing.T) {
	for _, c := range []struct {
		by   error
		code int
		said string
	}{{nil, 130, "interrupted"}, {exit.Signal(syscall.SIGINT), 130, "interrupted"}, {exit.Signal(syscall.SIGTERM), 143, "terminated"}} {
		ctx, interrupt := context.WithCancelCause(context.Background())
		var out, errs bytes.Buffer
		address := serve(t, &fake{watch: func() { interrupt(c.by) }})
		code := testApp(nil, &out, &errs, nil).Execute(ctx, []string{"offer", "watch", "--type", "endless", "--grpc", address})
		require.Equal(t, c.code, code)
		require.True(t, strings.HasSuffix(errs.String(), "blackholed: "+c.said+"\n"), errs.String()) // a warning may come before it
		require.Equal(t, 1, strings.Count(errs.String(), "blackholed: "))
		// The output up to the interrupt has complete events in order.
		require.True(t, strings.HasPrefix("added updated withdrawn reset", strings.Join(firstWords(out.String()), " ")), out.String())
	}
}

func firstWords(text string) []string {
	var words []string
	for line := range strings.Lines(text) {
		words = append(words, strings.Fields(line)[0])
	}
	return words
}

// TestRunEndsWellWhenInterrupted expects exit code 0 after an interrupt, unless the peer reports another error.
func TestRunEndsWellWhenInterrupted(t *testing.T) {
	run := func(err error) (int, string) {
		ctx, interrupt := context.WithCancel(context.Background())
		var errs bytes.Buffer
		a := testApp(nil, io.Discard, &errs, nil)
		a.Run = func(context.Context, config.Config, Runner) error { interrupt(); return err }
		return a.Execute(ctx, []string{"run"}), errs.String()
	}
	code, _ := run(nil)
	require.Zero(t, code)
	code, _ = run(fault.Wrap("daemon.Run", context.Canceled))
	require.Zero(t, code)
	code, text := run(fault.New("daemon.Run", fault.Internal, "the database did not close"))
	require.Equal(t, 1, code)
	require.Contains(t, text, "the database did not close")
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestLostOutputIsAFailure(t *testing.T) {
	address := serve(t, new(fake))
	for _, args := range []string{"status", "offer find --type x", "offer ls -o yaml", "offer watch --type brief -o yaml", "offer withdraw a"} {
		var errs bytes.Buffer
		code := testApp(nil, fullDisk{}, &errs, nil).Execute(context.Background(), append(strings.Fields(args), "--grpc", address))
		require.Equal(t, 1, code, args)
		require.Contains(t, errs.String(), "no space left", args)
	}
}

// TestNobodyAnswers: commands without an end do not wait for a peer that is not there.
func TestNobodyAnswers(t *testing.T) {
	for _, args := range []string{"status", "events", "kv watch a/", "lock hold a -- true", "instance watch a", "offer watch --type compute", "lease keepalive 1", "service require a", "top"} {
		var errs bytes.Buffer
		code := testApp(nil, io.Discard, &errs, []string{"BLACKHOLE_GRPC=127.0.0.1:1"}).Execute(t.Context(), strings.Fields(args))
		require.Equal(t, 69, code, "%s: %s", args, &errs)
		require.Contains(t, errs.String(), "no peer answers at 127.0.0.1:1: connection refused", args)
	}
}

// TestHelp expects the table of exit codes and every command in the help.
func TestHelp(t *testing.T) {
	var out bytes.Buffer
	a := testApp(nil, &out, io.Discard, nil)
	require.Zero(t, a.Execute(context.Background(), nil))
	require.Contains(t, command.OutputTopic().Long, exit.Help())
	for _, cmd := range a.root().Commands() {
		require.NotEmpty(t, cmd.Short, cmd.Name())
		require.Contains(t, out.String(), cmd.Name())
		require.Zero(t, a.Execute(context.Background(), []string{cmd.Name(), "--help"}))
	}
}

// A port in use leads to the flag that changes it.
func TestHintOfTakenAddress(t *testing.T) {
	for _, flag := range settings.ListenFlags() {
		var out, errs bytes.Buffer
		app := testApp(nil, &out, &errs, nil)
		app.Run = func(context.Context, config.Config, Runner) error {
			return errors.Join(fault.Wrap("daemon.Run", fault.In(flag, fault.As("op", fault.Unavailable, fmt.Errorf("bind: %w", syscall.EADDRINUSE)))), nil)
		}
		app.Execute(t.Context(), []string{"run", "--data", t.TempDir()})
		require.Contains(t, errs.String(), "blackholed: "+flag+": bind: address already in use\n")
		require.Contains(t, errs.String(), "set another address with --"+flag+"\n")
	}
}

// The first line at a terminal names the data directory, before the log says anything.
func TestRunNamesItsData(t *testing.T) {
	for terminal, first := range map[bool]string{true: "starting a peer; its data: ", false: "network "} {
		var errs bytes.Buffer
		dir := t.TempDir()
		app := testApp(nil, io.Discard, &errs, nil)
		app.Terminal.Errors = terminal
		require.Zero(t, app.Execute(t.Context(), []string{"run", "--data", dir}))
		require.True(t, strings.HasPrefix(errs.String(), first), errs.String())
		require.Contains(t, errs.String(), dir)
	}
}

// A person at a terminal is told what to do with a peer that is up. A log file is not.
func TestGreeting(t *testing.T) {
	for _, c := range []struct {
		up       Up
		terminal bool
		shown    string
	}{
		{Up{"office", "lan", "http://localhost:8500/ui/", config.Default().GRPC}, true,
			"a peer of network office runs in profile lan until Ctrl-C; its page: http://localhost:8500/ui/\n" +
				"try in another terminal: blackholed status; blackholed ui; blackholed lock hold my-lock -- date\n"},
		{Up{"dev", "dev", "off", "127.0.0.1:9502"}, true,
			"a peer of network dev runs in profile dev until Ctrl-C; its page: off\n" +
				"try in another terminal: blackholed status --grpc 127.0.0.1:9502; blackholed ui --grpc 127.0.0.1:9502; " +
				"blackholed lock hold my-lock --grpc 127.0.0.1:9502 -- date\n"},
		{Up{"dev", "dev", "off", "off"}, true, "a peer of network dev runs in profile dev until Ctrl-C; its page: off\n"},
		{Up{"dev", "dev", "off", "off"}, false, ""},
	} {
		var errs bytes.Buffer
		con := &term.Console{Stderr: &errs, Terminal: term.Terminal{Errors: c.terminal}}
		greet(con, c.up)
		require.Equal(t, c.shown, errs.String())
	}
}

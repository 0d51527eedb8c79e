package main

import (
	"bufio"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
)

//go:embed promises.txt
var promises string

// proof is what plays a promise in one package: its tests, or a bug of the simulation.
type proof struct {
	promise, where string
	tests          []string
	plant          string
}

// Variables of tests. A proof takes longer than a test: it plays networks at size, and clients over a bad network for ten minutes, twice
// on two processors, which play two clients at once.
const (
	long        = "TEST_LONG"
	stormLength = "TEST_STORM"
)

const proveUsage = `usage: go run ./testnet prove PROMISE

Plays a promise of RELIABILITY.md: it runs the tests behind it. Where the simulation can plant a bug that breaks the promise,
it plants it too, and demands that the checks notice. The first run compiles for a minute or two.

Promises: `

// proofs reads a table of promises.txt.
func proofs(table string) (all []proof) {
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] == "#" {
			continue
		}
		p := proof{promise: words[0], where: words[1], tests: words[2:]}
		if p.where == "plant" {
			p.where, p.tests, p.plant = "internal/coordination/simulation", []string{"TestPlanted"}, strings.Join(words[2:], " ")
		}
		all = append(all, p)
	}
	return all
}

// prove plays a promise. The exit code is 0 only if every test of it passes.
func prove(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var names []string
	chosen := slices.DeleteFunc(proofs(promises), func(p proof) bool {
		names = append(names, p.promise)
		return len(args) != 1 || p.promise != args[0]
	})
	if len(chosen) == 0 {
		fmt.Fprintln(stderr, proveUsage+strings.Join(slices.Compact(names), " "))
		if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
			return exitOK
		}
		return exitUsage
	}
	fmt.Fprintf(stdout, "proving %s by %d runs of go test, one line for each test; a first run compiles for a minute ...\n", args[0], len(chosen))
	for _, p := range chosen {
		if err := p.play(ctx, stdout); err != nil {
			fmt.Fprintf(stderr, "testnet prove: %v\n", err)
			return exitFailed
		}
	}
	fmt.Fprintf(stdout, "%s holds\n", args[0])
	return exitOK
}

// play runs the tests, and prints a line for each when it ends. It fails with Conflict after a failed or missing test.
func (p proof) play(ctx context.Context, out io.Writer) error {
	const op = "testnet.prove"
	run := "^(" + strings.Join(p.tests, "|") + ")$"
	args := []string{"test", "-count=1", "-v", "-timeout=30m"}
	if p.plant != "" {
		fmt.Fprintf(out, "without it (a bug is planted: %s):\n", p.plant)
		run += "/^" + regexp.QuoteMeta(strings.ReplaceAll(p.plant, " ", "_")) + "$"
		args = append(args, "-tags=planted")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "-run="+run, "github.com/blackhole/blackhole/"+p.where)...)
	cmd.Env = append(os.Environ(), long+"=1")
	if os.Getenv(stormLength) == "" {
		cmd.Env = append(cmd.Env, stormLength+"=10m")
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	cmd.Stderr = cmd.Stdout // a fault of the compiler comes with the tests
	if err := cmd.Start(); err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	rest, ended := p.follow(pipe, out)
	if err := cmd.Wait(); err != nil {
		return fault.New(op, fault.Conflict, "%s: %w\n%s", p.where, err, strings.Join(rest, "\n"))
	}
	for _, test := range p.tests {
		if !slices.Contains(ended, test) {
			return fault.New(op, fault.Conflict, "%s has no test %s", p.where, test)
		}
	}
	return nil
}

// follow prints a line for each test that ended, and what noticed a planted bug. It returns the last other lines and the
// names of the tests.
func (p proof) follow(r io.Reader, out io.Writer) (rest, ended []string) {
	const most = 200
	verdict := regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) (\(\S+\))$`)
	noticed := regexp.MustCompile(`^ +planted_test\.go:\d+: (seed .*)$`)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if m := verdict.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(out, "  %s  %s %s %s\n", strings.ToLower(m[1]), p.where, m[2], m[3])
			ended = append(ended, m[2])
		} else if m := noticed.FindStringSubmatch(line); m != nil {
			fmt.Fprintf(out, "  noticed: %s\n", m[1])
		} else if rest = append(rest, line); len(rest) > most {
			rest = rest[1:]
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line above the limit must not block the test
	return rest, ended
}

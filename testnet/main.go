// Command testnet plays networks of real peers, and the tests behind each promise. See README.md.
//
// This program imports little, so that it compiles within a second and says what it does. It then builds package play and
// blackholed in one run of the compiler, and becomes package play.
package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if args := os.Args[1:]; len(args) > 0 && args[0] == "prove" {
		os.Exit(prove(ctx, args[1:], os.Stdout, os.Stderr))
	}
	program, err := build(ctx, os.Stderr)
	stop()
	if err == nil {
		err = syscall.Exec(program, append([]string{program}, os.Args[1:]...), os.Environ())
	}
	fmt.Fprintf(os.Stderr, "testnet: %v\n", err)
	os.Exit(exitFailed)
}

// build compiles package play and blackholed into a directory of this source tree in the user's cache, and returns the
// first. What is up to date there is not linked again. The tag gives peers a clock that faults can set.
func build(ctx context.Context, people io.Writer) (program string, err error) {
	fmt.Fprintln(people, "building blackholed and the testnet; the first time takes minutes ...")
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	tree, err := os.Getwd()
	if err != nil {
		return "", err
	}
	key := fnv.New64a()
	_, _ = io.WriteString(key, tree) // a hash takes all
	dir := filepath.Join(cache, "blackhole-testnet", strconv.FormatUint(key.Sum64(), 36))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	const module = "github.com/blackhole/blackhole/"
	programs := []string{module + "testnet/play", module + "cmd/blackholed"}
	p := &progress{people: people, every: 10 * time.Second, end: "\n"}
	if f, ok := people.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.every, p.end = time.Second, "\r"
		}
	}
	stale := exec.CommandContext(ctx, "go", append([]string{"list", "-deps", "-tags=lab", "-f={{if .Stale}}{{.ImportPath}}{{end}}"}, programs...)...)
	if list, err := stale.Output(); err == nil { // else the build tells why
		p.all = bytes.Count(list, []byte("\n"))
	}
	c := exec.CommandContext(ctx, "go", append([]string{"build", "-v", "-tags=lab", "-o", dir + string(filepath.Separator)}, programs...)...)
	c.Stdout, c.Stderr = people, p
	return filepath.Join(dir, "play"), c.Run()
}

// progress counts the packages that "go build -v" names, each on a line of its own, and passes on its other words.
type progress struct {
	people    io.Writer
	all, done int
	every     time.Duration
	end       string // of a count; a terminal has the next one in its place
	told      time.Time
	rest      []byte // of an unfinished line
}

// Write implements io.Writer.
func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.rest = rest
		if bytes.ContainsAny(line, " \t:") {
			fmt.Fprintf(p.people, "%s\n", line)
			continue
		}
		p.done++
		if now := time.Now(); now.Sub(p.told) >= p.every || p.done == p.all {
			p.told = now
			fmt.Fprintf(p.people, "%d of %d packages compiled%s", p.done, max(p.all, p.done), p.end)
		}
	}
}

package kit

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Part is one measured part of a program. S is its session.
type Part[S any] struct {
	Name string
	Run  func(S, context.Context) error
}

// Names returns the names of parts.
func Names[S any](parts []Part[S]) []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.Name)
	}
	return all
}

// Session is what all sessions begin with.
type Session struct {
	Blackholed string        // path of the program to measure; Open builds it from this tree for ""
	Duration   time.Duration // of one measurement
	Runs       int           // of each measurement
	Out        io.Writer     // results
	Log        io.Writer     // of the servers; nil: none
	Scratch    string        // temporary directory, from Open to Close

	names   []string
	only    string
	dir     string
	verbose bool
}

// Flags returns the flags of a program, with those of all programs. names are its parts.
func (s *Session) Flags(program string, names []string, duration time.Duration, stderr io.Writer) *flag.FlagSet {
	s.names = names
	f := flag.NewFlagSet(program, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&s.Blackholed, "blackholed", "", "`path` of the blackholed to measure (default: built from this tree)")
	f.StringVar(&s.only, "only", "", "parts to run, with commas: "+strings.Join(names, ", ")+" (default all)")
	f.StringVar(&s.dir, "dir", "", "`directory` on the disk to use (default a temporary one)")
	f.DurationVar(&s.Duration, "duration", duration, "of one measurement")
	f.IntVar(&s.Runs, "runs", 3, "of each measurement; the median is printed")
	f.BoolVar(&s.verbose, "v", false, "show the servers' logs")
	return f
}

// Parse reads the flags, and checks those of all programs. Errors: flag.ErrHelp; Invalid.
func (s *Session) Parse(f *flag.FlagSet, args []string) error {
	if err := f.Parse(args); err != nil {
		return err
	}
	switch {
	case f.NArg() > 0:
		return fault.Invalidf("arguments", f.Args(), "there are none")
	case s.Duration < 100*time.Millisecond || s.Duration > time.Hour:
		return fault.Invalidf("duration", s.Duration, "must be 100ms to 1h")
	}
	for _, part := range s.chosen() {
		if !slices.Contains(s.names, part) {
			return fault.Invalidf("only", part, "is none of %s", strings.Join(s.names, ", "))
		}
	}
	return Within("runs", s.Runs, 1, 1000)
}

// Within returns Invalid for a number outside its bounds.
func Within(field string, n, least, most int) error {
	if n < least || n > most {
		return fault.Invalidf(field, n, "must be %d to %d", least, most)
	}
	return nil
}

func (s *Session) chosen() []string {
	if s.only == "" {
		return s.names
	}
	return strings.Split(s.only, ",")
}

// Open makes the scratch directory and builds blackholed.
func (s *Session) Open(ctx context.Context, stdout, stderr io.Writer) (err error) {
	s.Out = stdout
	if s.verbose {
		s.Log = stderr
	}
	if s.Scratch, err = os.MkdirTemp(s.dir, "blackhole-bench-"); err != nil {
		return fault.As("kit.Open", fault.Invalid, err)
	}
	if s.Blackholed != "" {
		return nil
	}
	s.Blackholed = filepath.Join(s.Scratch, "blackholed")
	return Build(ctx, ".", s.Blackholed, "github.com/blackhole/blackhole/cmd/blackholed")
}

// Close removes the scratch directory.
func (s *Session) Close() error { return os.RemoveAll(s.Scratch) }

// Measured is a session of a program: a Session, possibly with an Open and a Close of its own.
type Measured interface {
	Open(ctx context.Context, stdout, stderr io.Writer) error // prepares the session; Close follows, also after an error
	Close() error                                             // removes all that Open made
	chosen() []string
}

// Play opens a session, runs its chosen parts in order, and closes it.
func Play[S Measured](ctx context.Context, session S, parts []Part[S], stdout, stderr io.Writer) (err error) {
	defer func() { err = errors.Join(err, session.Close()) }()
	if err := session.Open(ctx, stdout, stderr); err != nil {
		return err
	}
	for _, p := range parts {
		if !slices.Contains(session.chosen(), p.Name) {
			continue
		}
		if err := p.Run(session, ctx); err != nil {
			return fault.Wrap(p.Name, err)
		}
	}
	return nil
}

// Main is the body of a program's main. Interrupts end the context, and a second one the program. The exit code is 2 for
// bad arguments and 1 for other errors.
func Main(name string, execute func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, name+":", err)
	if fault.KindOf(err) == fault.Invalid {
		os.Exit(2)
	}
	os.Exit(1)
}

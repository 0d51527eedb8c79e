package main

import (
	"os"

	"golang.org/x/term"

	output "github.com/blackhole/blackhole/internal/cli/term"
)

// terminal describes the terminal of this process.
func terminal() output.Terminal {
	t := output.Terminal{Errors: term.IsTerminal(int(os.Stderr.Fd())), Input: term.IsTerminal(int(os.Stdin.Fd()))}
	if out := int(os.Stdout.Fd()); term.IsTerminal(out) {
		t.Size = func() (columns, rows int) {
			columns, rows, err := term.GetSize(out)
			if err != nil {
				return 80, 24
			}
			return columns, rows
		}
	}
	if in := int(os.Stdin.Fd()); t.Input {
		t.Raw = func() (restore func()) {
			before, err := term.MakeRaw(in)
			if err != nil {
				return func() {}
			}
			return func() { _ = term.Restore(in, before) } // a terminal that is gone needs no restoring
		}
	}
	return t
}

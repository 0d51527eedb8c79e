// Package script plays scripts of testscript outside tests. A package brings the words.
package script

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Words are the commands of a script, beside those of testscript.
type Words map[string]func(ts *testscript.TestScript, neg bool, args []string)

// Add adds a word that has no meaning after "!" and needs a number of arguments.
func (w Words) Add(name string, least int, do func(args []string) error) {
	w[name] = func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) < least {
			ts.Fatalf("%s needs %d arguments, and no !", name, least)
		}
		ts.Check(do(args))
	}
}

// Play plays a text in a directory. The log has every command; it ends with the failure if the script did not hold. condition
// decides those of the script, and set its variables. The error concerns the run itself.
func Play(dir, name, text string, words Words, condition func(string) (bool, error), set map[string]string) (log string, held bool, err error) {
	file := filepath.Join(dir, name+".txt")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return "", false, fault.As("script.Play", fault.Invalid, err)
	}
	t := &told{}
	t.Run("", func(testscript.T) {
		testscript.RunT(t, testscript.Params{
			Files: []string{file}, WorkdirRoot: dir, Cmds: words, Condition: condition,
			Setup: func(e *testscript.Env) error {
				e.Setenv("HOME", dir)
				for name, value := range set {
					e.Setenv(name, value)
				}
				return nil
			},
		})
	})
	return strings.TrimSpace(t.log.String()), !t.failed, nil
}

// told is a testscript.T outside a test: it collects what a script says.
type told struct {
	log    strings.Builder
	failed bool
}

// Skip ends the script.
func (t *told) Skip(is ...any) { t.Fatal(is...) }

// Fatal fails the script.
func (t *told) Fatal(is ...any) { t.Log(is...); t.FailNow() }

// Parallel does nothing: there is one script.
func (t *told) Parallel() {}

// Log keeps a text.
func (t *told) Log(is ...any) { fmt.Fprintln(&t.log, is...) }

// FailNow fails the script, and ends its goroutine.
func (t *told) FailNow() { t.failed = true; runtime.Goexit() }

// Run runs a part in a goroutine of its own, and waits for it.
func (t *told) Run(_ string, f func(testscript.T)) {
	done := make(chan struct{})
	go func() { // ends below
		defer close(done)
		f(t)
	}()
	<-done
}

// Verbose tells testscript to log every command.
func (t *told) Verbose() bool { return true }

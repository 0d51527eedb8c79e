package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/blackhole/blackhole/testnet/process"
)

// TestMain puts blackholed beside this program, where process.Build finds it, once for all tests.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "6"); err != nil { // they wait for elections and ends of leases, not for processors; the command line wins
		panic(err)
	}
	flag.Parse()
	os.Exit(play(m))
}

func play(m *testing.M) int {
	program, err := os.Executable()
	if err == nil {
		program, err = process.Build(context.Background(), filepath.Dir(program))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.Remove(program)
	return m.Run()
}

// long skips a test that takes a minute of processors or waits for several elections.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("TEST_LONG") == "" {
		t.Skip("plays processes for a minute: set TEST_LONG=1, as .ci/night and testnet prove do")
	}
}

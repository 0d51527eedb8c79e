package fence_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

// The holder with token 8 came after the holder with token 7, which was paused and writes late.
func ExampleGuard() {
	var g fence.Guard
	write := func(text string) func() error {
		return func() error {
			fmt.Println(text)
			return nil
		}
	}
	_ = g.Do(8, write("written by 8"))
	err := g.Do(7, write("written by 7"))
	fmt.Println(errors.Is(err, fault.Conflict))

	// Output:
	// written by 8
	// true
}

// A file remembers the greatest token across restarts.
func ExampleFile() {
	dir, err := os.MkdirTemp("", "fence")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "report")
	fmt.Println(fence.NewFile(path).Write(8, []byte("by 8"), 0o600))
	fmt.Println(errors.Is(fence.NewFile(path).Write(7, []byte("by 7"), 0o600), fault.Conflict))

	// Output:
	// <nil>
	// true
}

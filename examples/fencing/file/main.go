// Command file guards a file with a lock: a former holder cannot replace the file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/blackhole/blackhole/examples/fencing/sleeper"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

func main() {
	grpc := flag.String("grpc", client.DefaultAddress, "gRPC `address` of the local peer")
	path := flag.String("file", filepath.Join(os.TempDir(), "blackhole-example.txt"), "`file` to write; a file beside it stores the token")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := write(ctx, *grpc, *path); err != nil {
		fmt.Fprintln(os.Stderr, "file:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, grpc, path string) error {
	c, err := client.New(grpc)
	if err != nil {
		return err
	}
	defer c.Close()
	holders, err := sleeper.Take(ctx, c, "examples/file")
	if err != nil {
		return err
	}
	defer holders.Close()

	f := fence.NewFile(path) // usually each writer has its own File; they share the token on disk
	if err := f.Write(holders.Awake.Token(), []byte("written by the holder\n"), 0o644); err != nil {
		return err
	}
	fmt.Printf("token %d wrote %s\n", holders.Awake.Token(), path)

	err = f.Write(holders.Asleep.Token(), []byte("written too late\n"), 0o644)
	if !errors.Is(err, fault.Conflict) {
		return fmt.Errorf("the sleeper was not refused: %w", err)
	}
	fmt.Printf("token %d was refused: %s\n", holders.Asleep.Token(), fault.Message(err))
	return nil
}

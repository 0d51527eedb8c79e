// Command row guards a row of a database with a lock: the update statement checks the token.
// The database is a toy with a single row, in toy.go. A real program imports a database driver
// instead.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/blackhole/blackhole/examples/fencing/sleeper"
	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
)

// update checks the token and writes in one step. The column token starts at 0:
//
//	CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL, token INTEGER NOT NULL DEFAULT 0)
const update = "UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?"

func main() {
	grpc := flag.String("grpc", client.DefaultAddress, "gRPC `address` of the local peer")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := write(ctx, *grpc, sql.OpenDB(new(toy))); err != nil {
		fmt.Fprintln(os.Stderr, "row:", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, grpc string, db *sql.DB) error {
	defer db.Close()
	c, err := client.New(grpc)
	if err != nil {
		return err
	}
	defer c.Close()
	holders, err := sleeper.Take(ctx, c, "examples/account/alice")
	if err != nil {
		return err
	}
	defer holders.Close()

	set := func(token fence.Token, balance int) error {
		return fence.Exec(ctx, db, token, update, balance, token, "alice", token)
	}
	if err := set(holders.Awake.Token(), 80); err != nil {
		return err
	}
	fmt.Printf("token %d set the balance to 80\n", holders.Awake.Token())

	err = set(holders.Asleep.Token(), 120)
	if !errors.Is(err, fault.Conflict) {
		return fmt.Errorf("the sleeper was not refused: %w", err)
	}
	fmt.Printf("token %d was refused: %s\n", holders.Asleep.Token(), fault.Message(err))
	return nil
}

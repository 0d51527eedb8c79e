package main

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync"
)

// toy is a database with a single row, and a single statement.
type toy struct {
	mu             sync.Mutex
	balance, token int64
}

// Connect implements driver.Connector.
func (t *toy) Connect(context.Context) (driver.Conn, error) { return connection{t}, nil }

// Driver implements driver.Connector.
func (t *toy) Driver() driver.Driver { return nil }

type connection struct{ *toy }

// Prepare implements driver.Conn.
func (connection) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

// Begin implements driver.Conn.
func (connection) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

// Close implements driver.Conn.
func (connection) Close() error { return nil }

// ExecContext implements driver.ExecerContext.
func (c connection) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if query != update {
		return nil, errors.ErrUnsupported
	}
	balance, token := args[0].Value.(int64), args[1].Value.(int64)
	c.mu.Lock()
	defer c.mu.Unlock()
	if args[2].Value != "alice" || token < c.token {
		return driver.RowsAffected(0), nil
	}
	c.balance, c.token = balance, token
	return driver.RowsAffected(1), nil
}

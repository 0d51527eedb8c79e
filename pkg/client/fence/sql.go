package fence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Execer is *sql.DB, *sql.Tx or *sql.Conn.
type Execer interface {
	// ExecContext executes a statement that returns no rows.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Exec executes a statement that checks the token in the same step as it writes:
//
//	UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?
//
// The row keeps the greatest token in a column of its own, not null, 0 in the beginning. Token
// stands in args wherever the statement needs it, in the driver's own placeholders. The database
// makes check and write one step, whatever the isolation. The statement must touch a row:
// that it touched none is how a stale token shows.
//
// Errors: Invalid for no token; Conflict when no row was touched, for the token is stale or
// there is no such row; Internal for the database's own.
func Exec(ctx context.Context, db Execer, token Token, query string, args ...any) error {
	const op = "fence.Exec"
	if token <= 0 {
		return fault.Wrap(op, fault.Invalidf("token", token, "must be above 0"))
	}
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return failed(op, err)
	}
	touched, err := result.RowsAffected()
	switch {
	case err != nil:
		return failed(op, err)
	case touched == 0:
		return &fault.Error{Op: op, Kind: fault.Conflict, Field: "token", Value: token, Err: errNoRow}
	}
	return nil
}

// errNoRow is what a stale token comes to.
var errNoRow = errors.New("touched no row: the token is stale, or there is no such row")

// failed keeps the end of a context apart from a database's failure.
func failed(op string, err error) error {
	if kind := fault.KindOf(err); kind == fault.Timeout || kind == fault.Canceled {
		return fault.Wrap(op, err)
	}
	return fault.As(op, fault.Internal, err)
}

package fence

import (
	"context"
	"database/sql"
	"errors"

	"github.com/blackhole/blackhole/pkg/fault"
)

// Execer is *sql.DB, *sql.Tx or *sql.Conn.
type Execer interface {
	// ExecContext executes a statement without result rows.
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Exec executes a statement that checks the token and writes in one step:
//
//	UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?
//
// A separate column of the row stores the greatest token, not null, initially 0. args has the
// token wherever the statement needs it, in the driver's placeholders. The database makes the
// check and the write one step at every isolation level. The statement must change a row: no
// changed row means a stale token.
//
// Errors: Invalid for a missing token; Conflict for a stale token or a missing row; Internal for
// errors of the database.
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

// errNoRow is the effect of a stale token.
var errNoRow = errors.New("no row changed: the token is stale, or the row does not exist")

// failed distinguishes the end of a context from a failure of the database.
func failed(op string, err error) error {
	if kind := fault.KindOf(err); kind == fault.Timeout || kind == fault.Canceled {
		return fault.Wrap(op, err)
	}
	return fault.As(op, fault.Internal, err)
}

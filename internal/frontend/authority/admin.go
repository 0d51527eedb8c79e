package authority

import (
	"context"
	"io"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// admin leaves a line about each backup: it holds the values of all keys.
type admin struct {
	coord.Admin
	gate *Gate
}

// Admin returns the orders of operators behind the audit. Changes of members leave their line at the group's leader.
func (g *Gate) Admin(of coord.Admin) coord.Admin { return admin{of, g} }

// Backup implements coord.Admin.
func (a admin) Backup(ctx context.Context, w io.Writer) error {
	out := &counter{w: w}
	err := a.Admin.Backup(ctx, out)
	a.gate.Logger.Info("a caller took a backup of the group", "audit", "group_backup", "caller", a.gate.caller(ctx).Name, "bytes", out.n, "error", err)
	return err
}

// counter counts what passes.
type counter struct {
	w io.Writer
	n int64
}

// Write implements io.Writer.
func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// maxBackups bounds the concurrent downloads of backups. Each reads the whole state of the group.
const maxBackups = 2

// backUp streams a backup of the group. A backup that breaks off has no proper end in HTTP either, and its checksums tell.
func backUp(p *coordinationAPI) callHandler {
	return func(ctx context.Context, c call) error {
		release, err := p.backups.Take(ctx, "httpapi.backup")
		if err != nil {
			return err
		}
		defer release()
		out := &download{w: c.w, control: http.NewResponseController(c.w)}
		if c.r.Method == http.MethodHead {
			out.begin()
			return nil
		}
		err = p.Admin.Backup(ctx, out)
		if err != nil && out.begun {
			panic(http.ErrAbortHandler) // net/http breaks the connection; the plane behind has logged the reason
		}
		return err
	}
}

// download is an answer of unknown size. Each part has its own bound on time.
type download struct {
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool
}

func (d *download) begin() {
	d.begun = true
	h := d.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="blackholed-group.backup"`)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	d.w.WriteHeader(http.StatusOK)
}

// Write implements io.Writer.
func (d *download) Write(b []byte) (int, error) {
	if !d.begun {
		d.begin()
	}
	_ = d.control.SetWriteDeadline(time.Now().Add(writeAnswer)) // an error shows in the write
	n, err := d.w.Write(b)
	return n, fault.As("httpapi.backup", fault.Canceled, err)
}

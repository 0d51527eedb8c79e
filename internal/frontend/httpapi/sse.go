package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
)

// eventStream is an answer of server-sent events (WHATWG HTML, section 9.2).
type eventStream struct {
	w        http.ResponseWriter
	control  *http.ResponseController
	headOnly bool // of a HEAD request
	begun    bool
}

// newEventStream prepares a stream and lifts the bound on reading the request, which has arrived.
func newEventStream(w http.ResponseWriter, r *http.Request) *eventStream {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	return &eventStream{w: w, control: control, headOnly: r.Method == http.MethodHead}
}

// begin sends the header. It fails with Canceled for a HEAD request, which ends the watch.
func (e *eventStream) begin() error {
	if e.begun {
		return nil
	}
	e.begun = true
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	e.w.WriteHeader(http.StatusOK)
	if e.headOnly {
		return fault.New("httpapi.watch", fault.Canceled, "the client asked for the header only")
	}
	return e.control.Flush()
}

// write sends the text of whole events. It fails if the client does not read within writeAnswer.
func (e *eventStream) write(text []byte) error {
	if err := e.begin(); err != nil {
		return err
	}
	if err := e.control.SetWriteDeadline(time.Now().Add(writeAnswer)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := e.w.Write(text); err != nil {
		return err
	}
	return e.control.Flush()
}

// end hides an error behind the end of a stream that has begun: the client reconnects.
func (e *eventStream) end(err error) error {
	if e.begun {
		return nil
	}
	return err
}

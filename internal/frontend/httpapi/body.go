package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

// readBody reads the body of a request, up to maxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := readUpTo(w, r, maxBody)
	if err == nil && len(body) == 0 {
		return nil, fault.Invalidf("body", nil, "is empty: send a JSON object")
	}
	return body, err
}

// readUpTo reads a body that may be empty. A large one has room in the budget until the request ends.
func readUpTo(w http.ResponseWriter, r *http.Request, most int64) (body []byte, err error) {
	if err := hold(w, r, most); err != nil {
		return nil, err
	}
	if n := r.ContentLength; 0 <= n && n <= most {
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	}
	if err != nil {
		return nil, unread(err)
	}
	return body, nil
}

// hold takes room for a body of most bytes, or of the size that it says, until the request ends.
func hold(w http.ResponseWriter, r *http.Request, most int64) (err error) {
	if n := r.ContentLength; 0 <= n && n <= most {
		most = n
	}
	if resp := responseOf(w); resp != nil { // not a writer of tests
		resp.held, err = resp.requests.TakeBytes(r.Context(), "httpapi", int(most), 0)
	}
	return err
}

// unread is the error for a body that is too large, incomplete or not JSON.
func unread(err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &fault.Error{Kind: fault.TooLarge, Field: "body", Err: fmt.Errorf("exceeds %d bytes: split the request", large.Limit)}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fault.Invalidf("body", nil, "ends before the JSON object does: send the whole object")
	default:
		return fault.Invalidf("body", nil, "cannot be read: %w", err)
	}
}

// within sets the field of an error without field, such as for text that is not JSON, to the
// body or the url.
func within(where string, err error) error {
	if err != nil && fault.FieldOf(err) == "" {
		return fault.In(where, err)
	}
	return err
}

// entry is one record of a batch: an offer, or the error of its text.
type entry struct {
	offer records.Offer
	err   error
}

// readBatch reads {"records": [...]} record by record, so that a batch takes no more memory than
// its offers. It fails only if the text is not a batch.
func readBatch(body io.Reader) (entries []entry, err error) {
	d := json.NewDecoder(body)
	if t, err := d.Token(); err != nil {
		return nil, unread(err)
	} else if t != json.Delim('{') {
		return nil, fault.Invalidf("body", nil, "must be a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, unread(err)
		}
		switch name, _ := t.(string); {
		case name != "records":
			return nil, fault.Invalidf(input.Quote(name), nil, "is unknown in a batch: send only records")
		case entries != nil:
			return nil, fault.Invalidf("records", nil, "occurs more than once: send one list")
		}
		if entries, err = readEntries(d); err != nil {
			return nil, err
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return nil, unread(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fault.Invalidf("body", nil, "has text after the JSON object: remove the text")
	}
	if len(entries) == 0 {
		return nil, fault.Invalidf("records", 0, "must have 1 to %d entries", discovery.MaxBatch)
	}
	return entries, nil
}

// readEntries reads the list. The result is never nil.
func readEntries(d *json.Decoder) ([]entry, error) {
	if t, err := d.Token(); err != nil {
		return nil, unread(err)
	} else if t != json.Delim('[') {
		return nil, fault.Invalidf("records", nil, "must be a list of records")
	}
	entries := []entry{}
	for d.More() {
		if len(entries) == discovery.MaxBatch {
			return nil, fault.Invalidf("records", nil, "must have 1 to %d entries", discovery.MaxBatch)
		}
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return nil, unread(err)
		}
		offer, err := records.ParseOffer(text)
		entries = append(entries, entry{offer, err})
	}
	if _, err := d.Token(); err != nil { // the closing bracket
		return nil, unread(err)
	}
	return entries, nil
}

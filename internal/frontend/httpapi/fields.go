package httpapi

import (
	"net/http"
	"net/url"
	"reflect"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/partial"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// entries describes what the parameter fields may name in the answers of a route.
type entries struct {
	list  string // member of the answer with a list of entries; empty: the answer is the entry
	shape *partial.Shape
}

func entriesOf[T any](list string) *entries {
	return &entries{list, partial.ShapeOf(reflect.TypeFor[T]())}
}

func resultEntries() *entries            { return entriesOf[query.ResultView]("results") }
func recordEntries(list string) *entries { return entriesOf[records.View](list) }
func instanceEntries() *entries          { return entriesOf[instance.BriefJSON]("instances") }
func keyEntries() *entries               { return entriesOf[keyBody]("keys") }

// cutter cuts an answer down to the fields that its request names. A nil cutter cuts nothing.
type cutter struct {
	list   string
	fields *partial.Fields
}

// cut returns a body with the named fields. The handler may share its body with other requests.
func (c *cutter) cut(code int, body []byte) []byte {
	if c == nil || code != http.StatusOK {
		return body
	}
	out := make([]byte, 0, len(body)/4)
	if c.list == "" {
		out = c.fields.Cut(out, body)
	} else {
		out = c.fields.CutEntries(out, body, c.list)
	}
	return append(out, '\n')
}

// record returns the JSON of a record with the named fields.
func (c *cutter) record(dst []byte, r *records.Record) []byte {
	if c == nil {
		return r.AppendJSON(dst)
	}
	return c.fields.Cut(dst, r.AppendJSON(nil))
}

// cutting takes the parameter fields out of a request, and the other fields out of its answer.
func cutting(e *entries, next http.Handler) http.Handler {
	return handler(func(w http.ResponseWriter, r *http.Request) error {
		var values url.Values
		if r.URL.RawQuery != "" {
			values = r.URL.Query() // without what is malformed, which the handler refuses
		}
		if !values.Has("fields") {
			next.ServeHTTP(w, r)
			return nil
		}
		values, err := input.Query(r.URL)
		if err != nil {
			return err
		}
		fields, err := partial.Parse(e.shape, values["fields"])
		if err != nil {
			return err
		}
		values.Del("fields")
		as, u := *r, *r.URL
		u.RawQuery = values.Encode()
		as.URL = &u
		next.ServeHTTP(cutBy(w, r, &cutter{e.list, fields}), &as)
		return nil
	})
}

// cutBy gives the answer w a cutter.
func cutBy(w http.ResponseWriter, r *http.Request, c *cutter) http.ResponseWriter {
	resp, ok := w.(*response)
	if !ok { // a guard has wrapped the writer
		resp = &response{ResponseWriter: w, conn: connOf(r)}
	}
	resp.cutter = c
	return resp
}

// cutterOf returns the cutter of an answer, or nil.
func cutterOf(w http.ResponseWriter) *cutter {
	if r, ok := w.(*response); ok {
		return r.cutter
	}
	return nil
}
